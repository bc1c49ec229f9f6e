/* A stand-in for NVIDIA's libnvidia-ml.so.1: answers from the file that NVML_STUB_STATE names, read anew on each call.
 *
 * A line is "key value". A device's key begins with its number, and that of a MIG instance with both: "0.utilisation 37",
 * "0.mig.1.uuid MIG-b". Of any function: "hang FUNCTION", "crash FUNCTION", "FUNCTION.error 15",
 * "0.FUNCTION.error 15" on one device. What is not in the file is not supported.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int nvmlReturn_t;
enum {
    SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, UNKNOWN = 999,
    GPUS = 16, INSTANCES = 7, KEY = 128, LINE = 512,
};

/* A handle points at one of these: which GPU it is, and which of its MIG instances, or -1. */
struct device { int gpu, instance; };
static struct device devices[GPUS][INSTANCES + 1];
typedef struct device *nvmlDevice_t;
struct sample { nvmlDevice_t device; };

typedef struct { unsigned long long total, free, used; } nvmlMemory_t;
typedef struct { unsigned int gpu, memory; } nvmlUtilization_t;
typedef struct { unsigned int version, isSupportedDevice; } nvmlGpmSupport_t;
typedef struct { char *short_name, *long_name, *unit; } info_t;
typedef struct { unsigned int metricId; nvmlReturn_t nvmlReturn; double value; info_t info; } nvmlGpmMetric_t;
typedef struct {
    unsigned int version, numMetrics;
    struct sample *sample1, *sample2;
    nvmlGpmMetric_t metrics[];
} nvmlGpmMetricsGet_t;

static int lookup(const char *key, char *value) {
    const char *path = getenv("NVML_STUB_STATE");
    FILE *file = path ? fopen(path, "r") : NULL;
    char line[LINE], found[LINE];
    int there = 0;
    if (!file) return 0;
    while (!there && fgets(line, sizeof line, file))
        there = sscanf(line, "%511s %511s", found, value) == 2 && !strcmp(found, key);
    fclose(file);
    return there;
}

static int is_set(const char *key, const char *wanted) {
    char value[LINE];
    return lookup(key, value) && !strcmp(value, wanted);
}

static void name(char *key, nvmlDevice_t device, const char *field) {
    if (device->instance < 0) snprintf(key, KEY, "%d.%s", device->gpu, field);
    else snprintf(key, KEY, "%d.mig.%d.%s", device->gpu, device->instance, field);
}

static int text(nvmlDevice_t device, const char *field, char *value) {
    char key[KEY];
    name(key, device, field);
    return lookup(key, value);
}

static int number(nvmlDevice_t device, const char *field, double *value) {
    char digits[LINE];
    if (!text(device, field, digits)) return 0;
    *value = strtod(digits, NULL);
    return 1;
}

static unsigned int whole(nvmlDevice_t device, const char *field) {
    double value = 0;
    number(device, field, &value);
    return (unsigned int)value;
}

/* What the file wishes to happen in this function, on this device (NULL: none). */
static nvmlReturn_t fate(const char *function, nvmlDevice_t device) {
    char key[KEY], field[KEY], value[LINE];
    if (is_set("hang", function)) for (;;) pause();
    if (is_set("crash", function)) abort();
    snprintf(field, sizeof field, "%s.error", function);
    if (lookup(field, value)) return atoi(value);
    if (!device) return SUCCESS;
    name(key, device, field);
    return lookup(key, value) ? atoi(value) : SUCCESS;
}

#define FATE(device) do { nvmlReturn_t f = fate(__func__, device); if (f) return f; } while (0)

static unsigned int gpus(void) {
    char value[LINE];
    int count = lookup("gpus", value) ? atoi(value) : 0;
    return count > GPUS ? GPUS : (unsigned int)count;
}

static nvmlDevice_t device_of(int gpu, int instance) {
    nvmlDevice_t device = &devices[gpu][instance + 1];
    device->gpu = gpu;
    device->instance = instance;
    return device;
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags) { (void)flags; FATE(NULL); return SUCCESS; }
nvmlReturn_t nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(nvmlReturn_t code) { (void)code; return "an error of the stub"; }

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count) { FATE(NULL); *count = gpus(); return SUCCESS; }

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device) {
    if (index >= gpus()) return INVALID_ARGUMENT;
    *device = device_of((int)index, -1);
    FATE(*device);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
    char value[LINE];
    FATE(NULL);
    for (int gpu = 0; gpu < (int)gpus(); gpu++)
        for (int instance = -1; instance < INSTANCES; instance++) {
            *device = device_of(gpu, instance);
            if (text(*device, "uuid", value) && !strcmp(value, uuid)) return SUCCESS;
        }
    return NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length) {
    char value[LINE];
    FATE(device);
    if (!text(device, "uuid", value)) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(uuid, value);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *product, unsigned int length) {
    char value[LINE];
    FATE(device);
    if (!text(device, "product", value)) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(product, value);
    return SUCCESS;
}

nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length) {
    char value[LINE];
    FATE(NULL);
    if (!lookup("driver", value)) return NOT_SUPPORTED;
    if (strlen(value) >= length) return INSUFFICIENT_SIZE;
    strcpy(version, value);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    double value;
    FATE(device);
    if (!number(device, "utilisation", &value)) return NOT_SUPPORTED;
    rates->gpu = (unsigned int)value;
    rates->memory = 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    char used[LINE], total[LINE];
    FATE(device);
    if (!text(device, "memory_used", used) || !text(device, "memory_total", total)) return NOT_SUPPORTED;
    memory->used = strtoull(used, NULL, 10);
    memory->total = strtoull(total, NULL, 10);
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current, unsigned int *pending) {
    double mode;
    FATE(device);
    if (!number(device, "mig_mode", &mode)) return NOT_SUPPORTED;
    *current = *pending = (unsigned int)mode;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is_instance) {
    FATE(device);
    *is_instance = device->instance >= 0;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count) {
    FATE(device);
    *count = INSTANCES;
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t gpu, unsigned int index, nvmlDevice_t *device) {
    char value[LINE];
    FATE(gpu);
    if (index >= INSTANCES) return INVALID_ARGUMENT;
    *device = device_of(gpu->gpu, (int)index);
    return text(*device, "uuid", value) ? SUCCESS : NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetDeviceHandleFromMigDeviceHandle(nvmlDevice_t instance, nvmlDevice_t *gpu) {
    FATE(instance);
    *gpu = device_of(instance->gpu, -1);
    return SUCCESS;
}

nvmlReturn_t nvmlDeviceGetGpuInstanceId(nvmlDevice_t instance, unsigned int *id) {
    FATE(instance);
    if (instance->instance < 0) return NOT_SUPPORTED;
    *id = (unsigned int)instance->instance + 1;
    return SUCCESS;
}

nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t device, nvmlGpmSupport_t *support) {
    FATE(device);
    support->isSupportedDevice = whole(device, "gpm");
    return SUCCESS;
}

nvmlReturn_t nvmlGpmSampleAlloc(struct sample **sample) {
    *sample = calloc(1, sizeof **sample);
    return *sample ? SUCCESS : UNKNOWN;
}

nvmlReturn_t nvmlGpmSampleFree(struct sample *sample) { free(sample); return SUCCESS; }

nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t device, struct sample *sample) {
    FATE(device);
    sample->device = device;
    return SUCCESS;
}

nvmlReturn_t nvmlGpmMigSampleGet(nvmlDevice_t gpu, unsigned int instance, struct sample *sample) {
    FATE(gpu);
    sample->device = device_of(gpu->gpu, (int)instance - 1);
    return SUCCESS;
}

/* Like the real one it succeeds, and leaves 0, where only the one metric fails: "0.sm_error 3". */
nvmlReturn_t nvmlGpmMetricsGet(nvmlGpmMetricsGet_t *get) {
    if (!get->sample1 || !get->sample2 || !get->sample1->device || get->sample1 == get->sample2) return INVALID_ARGUMENT;
    FATE(get->sample2->device);
    for (unsigned int i = 0; i < get->numMetrics; i++) {
        nvmlGpmMetric_t *metric = &get->metrics[i];
        metric->value = 0;
        metric->nvmlReturn = (nvmlReturn_t)whole(get->sample2->device, "sm_error");
        if (!metric->nvmlReturn && (metric->metricId != 2 || !number(get->sample2->device, "sm", &metric->value)))
            metric->nvmlReturn = NOT_SUPPORTED;
    }
    return SUCCESS;
}
