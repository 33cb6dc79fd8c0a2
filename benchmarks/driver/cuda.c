/* Stand-in for libcuda.so.1: what benchmarks/hardware calls of it. Copies are made, fills take 100 us each. */
#define _DEFAULT_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, NOT_INITIALIZED = 3, INVALID_CONTEXT = 201 };
static int initialised;
static __thread void *current;
static char context;
static useconds_t queued;

int cuInit(unsigned int flags) { initialised = flags == 0; return initialised ? SUCCESS : INVALID_VALUE; }

int cuGetErrorString(int code, const char **text) {
    *text = code == INVALID_CONTEXT ? "invalid device context" : "invalid argument";
    return SUCCESS;
}

int cuDeviceGetByPCIBusId(int *device, const char *address) {
    *device = 0;
    return !initialised ? NOT_INITIALIZED : strlen(address) == strlen("0000:00:00.0") ? SUCCESS : INVALID_VALUE;
}

int cuDevicePrimaryCtxRetain(void **to, int device) { *to = &context; return device ? INVALID_VALUE : SUCCESS; }
int cuDevicePrimaryCtxRelease_v2(int device) { return device ? INVALID_VALUE : SUCCESS; }
int cuCtxSetCurrent(void *to) { current = to; return to == &context ? SUCCESS : INVALID_VALUE; }

static int allocated(void **to, size_t size) {
    *to = current ? malloc(size) : NULL;
    return *to ? SUCCESS : INVALID_CONTEXT;
}

int cuMemAlloc_v2(uint64_t *to, size_t size) { return allocated((void **)to, size); }
int cuMemAllocHost_v2(void **to, size_t size) { return allocated(to, size); }

int cuMemcpyHtoD_v2(uint64_t to, const void *of, size_t size) {
    if (!current) return INVALID_CONTEXT;
    memcpy((void *)to, of, size);
    return SUCCESS;
}

int cuMemsetD32Async(uint64_t to, unsigned int value, size_t count, void *stream) {
    if (!to || value || !count || stream) return INVALID_VALUE;
    queued += 100;
    return current ? SUCCESS : INVALID_CONTEXT;
}

int cuCtxSynchronize(void) { usleep(queued); queued = 0; return current ? SUCCESS : INVALID_CONTEXT; }
