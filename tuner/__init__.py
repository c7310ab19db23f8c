"""Orchestration and faces: spaces, studies, samplers, launch, reports and the command line."""
