/* Stands in for the NVIDIA driver's libnvidia-ml.so.1: one H100 PCIe, so that the real pynvml is
   exercised without a GPU. What it lacks is what an old driver lacks. */
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } memory_t;
#define NOT_FOUND 6
int nvmlInitWithFlags(unsigned flags) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { return "stub"; }
int nvmlSystemGetDriverVersion(char *text, unsigned size) { strncpy(text, "570.86.10", size); return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { *device = (void *)1; return index ? NOT_FOUND : 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device) { return NOT_FOUND; }
int nvmlDeviceGetName(void *device, char *text, unsigned size) { strncpy(text, "NVIDIA H100 PCIe", size); return 0; }
int nvmlDeviceGetUUID(void *device, char *text, unsigned size) { strncpy(text, "GPU-5a17c0de-0000", size); return 0; }
int nvmlDeviceGetMemoryInfo(void *device, memory_t *memory) { memory->total = 85520809984ULL; return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = 9; *minor = 0; return 0; }
int nvmlDeviceGetNumGpuCores(void *device, unsigned *cores) { *cores = 14592; return 0; }
int nvmlDeviceGetMigMode(void *device, unsigned *now, unsigned *next) { *now = *next = 0; return 0; }
int nvmlDeviceIsMigDeviceHandle(void *device, unsigned *is) { *is = 0; return 0; }
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = 1410; return 0; }
int nvmlDeviceGetMaxClockInfo(void *device, int type, unsigned *mhz) { *mhz = 1755; return 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *bits) { *bits = 0x4 | 0x1; return 0; }
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, void *infos) { *count = 0; return 0; }
