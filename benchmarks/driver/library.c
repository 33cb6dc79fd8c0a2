/* Stand-in for libnvidia-ml.so.1: answers what build.py has recorded, counters growing at their recorded rate.
 *
 * It costs what a C library costs without a driver beneath it, so that what commwatch itself costs can be measured.
 */

#include <string.h>
#include <time.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define TIMEOUT 10
#define ALL_LINKS 0xFFFFFFFFu
#define NVML_PCI_BUS_ID_OLD 16
#define NVML_PCI_BUS_ID 32

typedef int result;

typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type;
    result code;
    unsigned long long value;
} field_value;

typedef struct {
    char legacy[NVML_PCI_BUS_ID_OLD];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[NVML_PCI_BUS_ID];
} pci_info;

typedef struct {
    unsigned metric;
    result code;
    double value;
    const char *name, *unit, *title;
} gpm_metric;

typedef struct {
    unsigned version, count;
    void *first, *second;
    gpm_metric metrics[];
} gpm_request;

typedef struct {
    result code;
    unsigned long long value;
} answer;

typedef struct {
    short code;
    short type;
    float per_second;
    unsigned long long value;
} counter;

/* Functions with one number as the last argument; the first takes 64 bits, the second 32. */
#define LONG_NUMBERS(X) \
    X(nvmlDeviceGetCurrentClocksEventReasons) \
    X(nvmlDeviceGetCurrentClocksThrottleReasons) \
    X(nvmlDeviceGetSupportedEventTypes)
#define NUMBERS(X) \
    X(nvmlDeviceGetArchitecture) \
    X(nvmlDeviceGetCurrPcieLinkGeneration) \
    X(nvmlDeviceGetMaxPcieLinkGeneration) \
    X(nvmlDeviceGetGpuMaxPcieLinkGeneration) \
    X(nvmlDeviceGetCurrPcieLinkWidth) \
    X(nvmlDeviceGetMaxPcieLinkWidth) \
    X(nvmlDeviceGetComputeMode) \
    X(nvmlDeviceGetPersistenceMode) \
    X(nvmlDeviceGetPerformanceState) \
    X(nvmlDeviceGetPowerUsage) \
    X(nvmlDeviceGetEnforcedPowerLimit) \
    X(nvmlDeviceGetIndex) \
    X(nvmlDeviceGetMinorNumber)

#define MEMBER(function) answer function;
typedef struct {
    const char *name, *uuid, *serial;
    pci_info pci;
    unsigned long long memory_bytes, memory_reserved_bytes, memory_used_bytes;
    unsigned temperature_celsius, utilization_percent;
    unsigned clocks[4];
    answer mig, gpm, fabric;
    unsigned char fabric_info[64];
    LONG_NUMBERS(MEMBER) NUMBERS(MEMBER)
} gpu;

typedef struct {
    answer state, version, remote_type;
    result remote_code;
    pci_info remote;
} nvlink;

#include "answers.h"
/* It defines GPUS, LINKS (at least 1), HAS_LINKS, DRIVER, CUDA and CONFIDENTIAL, and the tables gpus[GPUS],
 * nvlinks[GPUS][LINKS], rows[FIELD_IDS], counters[GPUS][ROWS][LINKS + 1], rates[GPUS][METRICS], p2p[GPUS][GPUS][5]. */

static double elapsed(void)
{
    static double began;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double seconds = now.tv_sec + now.tv_nsec * 1e-9;
    if (began == 0.0)
        began = seconds;
    return seconds - began;
}

static long place_of(const gpu *device) { return device - gpus; }

static result text(const char *from, char *to, unsigned size)
{
    if (from == 0)
        return NOT_SUPPORTED;
    if (strlen(from) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, from);
    return SUCCESS;
}

static result give(answer from, unsigned *to)
{
    *to = (unsigned)from.value;
    return from.code;
}

result nvmlInit_v2(void) { return SUCCESS; }
result nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(result code) { (void)code; return "refused by the stand-in driver"; }
result nvmlSystemGetDriverVersion(char *to, unsigned size) { return text(DRIVER, to, size); }
result nvmlSystemGetNVMLVersion(char *to, unsigned size) { return text(LIBRARY, to, size); }
result nvmlSystemGetCudaDriverVersion(int *to) { *to = CUDA; return SUCCESS; }
result nvmlSystemGetCudaDriverVersion_v2(int *to) { *to = CUDA; return SUCCESS; }
result nvmlSystemGetConfComputeState(unsigned *to)
{
    to[0] = to[1] = to[2] = 0;
    return CONFIDENTIAL;
}
result nvmlDeviceGetCount_v2(unsigned *count) { *count = GPUS; return SUCCESS; }

result nvmlDeviceGetHandleByIndex_v2(unsigned index, const gpu **handle)
{
    if (index >= GPUS)
        return INVALID_ARGUMENT;
    *handle = &gpus[index];
    return SUCCESS;
}

result nvmlDeviceGetName(const gpu *device, char *to, unsigned size) { return text(device->name, to, size); }
result nvmlDeviceGetUUID(const gpu *device, char *to, unsigned size) { return text(device->uuid, to, size); }
result nvmlDeviceGetSerial(const gpu *device, char *to, unsigned size) { return text(device->serial, to, size); }
result nvmlDeviceGetPciInfo_v3(const gpu *device, pci_info *to) { *to = device->pci; return SUCCESS; }

#define LONG_FUNCTION(function) \
    result function(const gpu *device, unsigned long long *to) \
    { \
        *to = device->function.value; \
        return device->function.code; \
    }
#define FUNCTION(function) \
    result function(const gpu *device, unsigned *to) { return give(device->function, to); }
LONG_NUMBERS(LONG_FUNCTION)
NUMBERS(FUNCTION)

result nvmlDeviceGetMigMode(const gpu *device, unsigned *current, unsigned *pending)
{
    give(device->mig, current);
    return give(device->mig, pending);
}

result nvmlDeviceGetClockInfo(const gpu *device, unsigned kind, unsigned *to)
{
    if (kind >= 4)
        return INVALID_ARGUMENT;
    *to = device->clocks[kind];
    return SUCCESS;
}

result nvmlDeviceGetTemperature(const gpu *device, unsigned sensor, unsigned *to)
{
    *to = device->temperature_celsius;
    return sensor ? INVALID_ARGUMENT : SUCCESS;
}

result nvmlDeviceGetTemperatureV(const gpu *device, unsigned *version_sensor_celsius)
{
    return nvmlDeviceGetTemperature(device, version_sensor_celsius[1], &version_sensor_celsius[2]);
}

result nvmlDeviceGetUtilizationRates(const gpu *device, unsigned *gpu_and_memory)
{
    gpu_and_memory[0] = gpu_and_memory[1] = device->utilization_percent;
    return SUCCESS;
}

result nvmlDeviceGetPcieThroughput(const gpu *device, unsigned direction, unsigned *kilobytes_per_second)
{
    /* As long as the driver counts; a few KB/s, as an idle GPU has. */
    nanosleep(&(struct timespec){0, 20 * 1000 * 1000}, NULL);
    *kilobytes_per_second = 10 * (direction + 1);
    return device ? SUCCESS : INVALID_ARGUMENT;
}

result nvmlDeviceGetMemoryInfo(const gpu *device, unsigned long long *total_free_used)
{
    total_free_used[0] = device->memory_bytes;
    total_free_used[2] = device->memory_reserved_bytes + device->memory_used_bytes;
    total_free_used[1] = total_free_used[0] - total_free_used[2];
    return SUCCESS;
}

result nvmlDeviceGetMemoryInfo_v2(const gpu *device, unsigned long long *version_total_reserved_free_used)
{
    version_total_reserved_free_used[1] = device->memory_bytes;
    version_total_reserved_free_used[2] = device->memory_reserved_bytes;
    version_total_reserved_free_used[4] = device->memory_used_bytes;
    version_total_reserved_free_used[3] =
        device->memory_bytes - device->memory_reserved_bytes - device->memory_used_bytes;
    return SUCCESS;
}

/* Nobody computes. */
static result no_processes(unsigned *count) { *count = 0; return SUCCESS; }
result nvmlDeviceGetComputeRunningProcesses_v3(const gpu *device, unsigned *count, void *to)
{
    (void)device, (void)to;
    return no_processes(count);
}
result nvmlDeviceGetGraphicsRunningProcesses_v3(const gpu *device, unsigned *count, void *to)
{
    (void)device, (void)to;
    return no_processes(count);
}
result nvmlDeviceGetMPSComputeRunningProcesses_v3(const gpu *device, unsigned *count, void *to)
{
    (void)device, (void)to;
    return no_processes(count);
}

result nvmlDeviceGetGpuFabricInfoV(const gpu *device, unsigned char *info)
{
    if (device->fabric.code == SUCCESS) {
        unsigned version;
        memcpy(&version, info, sizeof version);
        memcpy(info, device->fabric_info, version & 0xFFFF); /* the low bits of a version are the size */
        memcpy(info, &version, sizeof version);
    }
    return device->fabric.code;
}

result nvmlDeviceGetP2PStatus(const gpu *device, const gpu *other, unsigned index, unsigned *to)
{
    if (index >= 5 || device == other)
        return INVALID_ARGUMENT;
    *to = p2p[place_of(device)][place_of(other)][index];
    return SUCCESS;
}

static const nvlink *link_of(const gpu *device, unsigned link)
{
    return link < HAS_LINKS ? &nvlinks[place_of(device)][link] : 0;
}

#define NO_LINK (HAS_LINKS ? INVALID_ARGUMENT : NOT_SUPPORTED)
#define LINK_FUNCTION(function, member) \
    result function(const gpu *device, unsigned link, unsigned *to) \
    { \
        const nvlink *found = link_of(device, link); \
        return found ? give(found->member, to) : NO_LINK; \
    }
LINK_FUNCTION(nvmlDeviceGetNvLinkState, state)
LINK_FUNCTION(nvmlDeviceGetNvLinkVersion, version)
LINK_FUNCTION(nvmlDeviceGetNvLinkRemoteDeviceType, remote_type)

result nvmlDeviceGetNvLinkRemotePciInfo_v2(const gpu *device, unsigned link, pci_info *to)
{
    const nvlink *found = link_of(device, link);
    if (found == 0)
        return NO_LINK;
    *to = found->remote;
    return found->remote_code;
}

static const counter *counter_of(const gpu *device, unsigned field, unsigned scope)
{
    unsigned slot = scope == ALL_LINKS ? LINKS : scope;
    if (field >= FIELD_IDS || rows[field] == 0 || slot > LINKS)
        return 0;
    return &counters[place_of(device)][rows[field] - 1][slot];
}

static unsigned long long now_of(const counter *found, double seconds)
{
    return found->value + (unsigned long long)(found->per_second * seconds);
}

result nvmlDeviceGetNvLinkErrorCounter(const gpu *device, unsigned link, unsigned kind, unsigned long long *to)
{
    if (link >= HAS_LINKS)
        return NO_LINK;
    const counter *found = kind < 3 ? counter_of(device, 161 + kind, link) : 0; /* the field with the same number */
    if (found == 0)
        return NOT_SUPPORTED;
    *to = now_of(found, elapsed());
    return found->code;
}

result nvmlDeviceGetFieldValues(const gpu *device, int count, field_value *values)
{
    double seconds = elapsed();
    for (int place = 0; place < count; place++) {
        field_value *value = &values[place];
        const counter *found = counter_of(device, value->field, value->scope);
        value->timestamp = (long long)(seconds * 1e6);
        value->latency = 0;
        value->code = found ? found->code : NOT_SUPPORTED;
        value->type = found ? (unsigned)found->type : 1;
        value->value = found ? now_of(found, seconds) : 0;
    }
    return SUCCESS;
}

result nvmlEventSetCreate(void **set)
{
    static char one;
    *set = &one;
    return SUCCESS;
}
result nvmlEventSetFree(void *set) { (void)set; return SUCCESS; }
result nvmlEventSetWait_v2(void *set, void *data, unsigned milliseconds)
{
    (void)set, (void)data, (void)milliseconds; /* commwatch never waits here */
    return TIMEOUT;
}
result nvmlDeviceRegisterEvents(const gpu *device, unsigned long long types, void *set)
{
    (void)device, (void)types, (void)set;
    return SUCCESS;
}

result nvmlGpmQueryDeviceSupport(const gpu *device, unsigned *version_and_support)
{
    version_and_support[1] = (unsigned)device->gpm.value;
    return device->gpm.code;
}

static const gpu *samples[4 * GPUS]; /* which GPU each was taken of */
static unsigned char lent[4 * GPUS];

result nvmlGpmSampleAlloc(const gpu ***sample)
{
    for (unsigned place = 0; place < 4 * GPUS; place++)
        if (!lent[place]) {
            lent[place] = 1;
            *sample = &samples[place];
            return SUCCESS;
        }
    return INSUFFICIENT_SIZE;
}
result nvmlGpmSampleFree(const gpu **sample)
{
    lent[sample - samples] = 0;
    return SUCCESS;
}
result nvmlGpmSampleGet(const gpu *device, const gpu **sample)
{
    *sample = device;
    return device->gpm.code;
}
result nvmlGpmMetricsGet(gpm_request *request)
{
    const gpu *device = *(const gpu **)request->second;
    for (unsigned place = 0; place < request->count; place++) {
        gpm_metric *metric = &request->metrics[place];
        double rate = metric->metric < METRICS ? rates[place_of(device)][metric->metric] : -1.0;
        metric->code = rate < 0 ? NOT_SUPPORTED : SUCCESS;
        metric->value = rate;
    }
    return SUCCESS;
}
