/* A fake driver: the part of CUDA's driver API that describes GPUs, configured by environment
   variables. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

static int setting(const char *name, int fallback)
{
    const char *value = getenv(name);
    return value ? atoi(value) : fallback;
}

int cuInit(unsigned flags) { return setting("FAKE_CUDA_STATUS", 0); }

int cuDriverGetVersion(int *version)
{
    *version = setting("FAKE_CUDA_VERSION", 13000);
    return 0;
}

int cuDeviceGetCount(int *count)
{
    *count = setting("FAKE_CUDA_COUNT", 1);
    return 0;
}

int cuDeviceGet(int *device, int index)
{
    *device = index;
    return 0;
}

int cuDeviceGetName(char *name, int size, int device)
{
    strncpy(name, "NVIDIA Stand-in", size);
    return 0;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device)
{
    *bytes = (size_t)80 << 30;
    return 0;
}

int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    int arch = setting("FAKE_CUDA_ARCH", 90);
    switch (attribute) {
    case 1: *value = 1024; return 0;         /* threads in a block */
    case 8: *value = 48 << 10; return 0;     /* bytes of shared memory in a block */
    case 10: *value = 32; return 0;          /* threads in a warp */
    case 12: *value = 1 << 16; return 0;     /* registers in a block */
    case 13: *value = 1980000; return 0;     /* kHz */
    case 16: *value = 132; return 0;         /* multiprocessors */
    case 38: *value = 50 << 20; return 0;    /* bytes of level-2 cache */
    case 75: *value = arch / 10; return 0;   /* compute capability */
    case 76: *value = arch % 10; return 0;
    default: return 1;                       /* CUDA_ERROR_INVALID_VALUE */
    }
}

int cuGetErrorName(int status, const char **text)
{
    *text = status == 999 ? "CUDA_ERROR_UNKNOWN" : NULL;
    return status == 999 ? 0 : 1;
}
