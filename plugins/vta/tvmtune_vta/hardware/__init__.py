"""The hardware: configuration, instruction set, programs, and the rules that programs must keep."""
