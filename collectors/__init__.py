"""What is measured and how: devices, isolated trials, the clock. Linux only (/proc, epoll)."""
