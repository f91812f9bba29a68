/* What NVML says of one device: names, figures, clocks, links, errors. Values are in NVML's own units. */
#include "fake.h"

#include <stdio.h>
#include <string.h>

#define ENTER(handle)                     \
    int code = enter((handle), __func__); \
    if (code != OK) return code

static unsigned as_unsigned(double v) { return (unsigned)(long long)v; }

static int answer(void *handle, const char *key, unsigned *out) {
    struct gpu *g = whole(handle);
    double v;
    if (!g || !value_at(g, key, now(), &v)) return NOT_SUPPORTED;
    *out = as_unsigned(v);
    return OK;
}

#define FIGURE(function, key)                  \
    int function(void *handle, unsigned *out) { \
        ENTER(handle);                          \
        return answer(handle, key, out);        \
    }

FIGURE(nvmlDeviceGetPowerUsage, "power")
FIGURE(nvmlDeviceGetEnforcedPowerLimit, "power_limit")
FIGURE(nvmlDeviceGetPowerManagementLimit, "power_limit")
FIGURE(nvmlDeviceGetPowerManagementDefaultLimit, "power_limit_default")
FIGURE(nvmlDeviceGetFanSpeed, "fan")
FIGURE(nvmlDeviceGetCurrPcieLinkGeneration, "pcie.gen")
FIGURE(nvmlDeviceGetMaxPcieLinkGeneration, "pcie.gen_max")
FIGURE(nvmlDeviceGetCurrPcieLinkWidth, "pcie.width")
FIGURE(nvmlDeviceGetMaxPcieLinkWidth, "pcie.width_max")
FIGURE(nvmlDeviceGetPersistenceMode, "persistence")
FIGURE(nvmlDeviceGetPerformanceState, "pstate")
FIGURE(nvmlDeviceGetComputeMode, "compute_mode")
FIGURE(nvmlDeviceGetDisplayActive, "display")
FIGURE(nvmlDeviceGetDisplayMode, "display")

int nvmlDeviceGetCount_v2(unsigned *out) {
    ENTER(NULL);
    *out = (unsigned)scenario.devices;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **out) {
    if (index >= (unsigned)scenario.devices) return INVALID_ARGUMENT;
    ENTER(&scenario.gpu[index]);
    *out = &scenario.gpu[index];
    return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **out) {
    ENTER(NULL);
    for (int i = 0; i < scenario.devices; i++) {
        if (strcmp(scenario.gpu[i].uuid, uuid) != 0) continue;
        *out = &scenario.gpu[i];
        return OK;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(void *handle, unsigned *out) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    *out = g ? (unsigned)g->index : 0;
    return OK;
}

int nvmlDeviceGetMinorNumber(void *handle, unsigned *out) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    if (!g) return NOT_SUPPORTED;
    *out = (unsigned)g->index;
    return OK;
}

int nvmlDeviceGetName(void *handle, char *out, unsigned size) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    snprintf(out, size, "%s", g ? g->name : ((struct slice *)handle)->name);
    return OK;
}

int nvmlDeviceGetUUID(void *handle, char *out, unsigned size) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    if (g) {
        snprintf(out, size, "%s", g->uuid);
        return OK;
    }
    struct slice *s = handle;
    snprintf(out, size, "MIG-%s-%d", s->parent->uuid, (int)(s - s->parent->slice));
    return OK;
}

struct pci_info {
    char legacy[16];
    unsigned domain, bus, device, id, subsystem;
    char bus_id[32];
};

int nvmlDeviceGetPciInfo_v3(void *handle, struct pci_info *out) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    if (!g) return NOT_SUPPORTED;
    memset(out, 0, sizeof *out);
    out->bus = (unsigned)g->index + 1;
    out->id = 0x233510de;
    snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus);
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", out->bus);
    return OK;
}

struct bar1 {
    unsigned long long total, free, used;
};

int nvmlDeviceGetBAR1MemoryInfo(void *handle, struct bar1 *out) {
    ENTER(handle);
    double total;
    struct gpu *g = whole(handle);
    if (!g || !value_at(g, "bar1", now(), &total)) return NOT_SUPPORTED;
    *out = (struct bar1){(unsigned long long)total, (unsigned long long)total, 0};
    return OK;
}

/* Windows only. */
int nvmlDeviceGetDriverModel_v2(void *handle, unsigned *current, unsigned *pending) {
    (void)current;
    (void)pending;
    ENTER(handle);
    return NOT_SUPPORTED;
}

struct utilization {
    unsigned gpu, memory;
};

int nvmlDeviceGetUtilizationRates(void *handle, struct utilization *out) {
    ENTER(handle);
    code = answer(handle, "busy", &out->gpu);
    return code != OK ? code : answer(handle, "memory_busy", &out->memory);
}

struct memory {
    unsigned long long total, free, used;
};

struct memory_v2 {
    unsigned version;
    unsigned long long total, reserved, free, used;
};

static int memory_of(void *handle, struct memory_v2 *out) {
    struct gpu *g = whole(handle);
    if (!g) {
        struct slice *s = handle;
        out->total = s->total;
        out->used = s->used;
        out->reserved = 0;
        out->free = s->total - s->used;
        return OK;
    }
    double total, used, reserved = 0;
    if (!value_at(g, "memory.total", now(), &total) || !value_at(g, "memory.used", now(), &used)) return NOT_SUPPORTED;
    value_at(g, "memory.reserved", now(), &reserved);
    out->total = (unsigned long long)total;
    out->used = (unsigned long long)used;
    out->reserved = (unsigned long long)reserved;
    out->free = out->total - out->used - out->reserved;
    return OK;
}

int nvmlDeviceGetMemoryInfo_v2(void *handle, struct memory_v2 *out) {
    ENTER(handle);
    if (out->version != 0x02000028) return VERSION_MISMATCH;
    return memory_of(handle, out);
}

/* The first version counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(void *handle, struct memory *out) {
    ENTER(handle);
    struct memory_v2 m = {0};
    code = memory_of(handle, &m);
    *out = (struct memory){m.total, m.free, m.used + m.reserved};
    return code;
}

int nvmlDeviceGetTemperature(void *handle, int sensor, unsigned *out) {
    ENTER(handle);
    return sensor == 0 ? answer(handle, "temperature", out) : INVALID_ARGUMENT;
}

int nvmlDeviceGetTemperatureThreshold(void *handle, int threshold, unsigned *out) {
    ENTER(handle);
    return answer(handle, threshold == 0 ? "shutdown" : threshold == 1 ? "slowdown" : "?", out);
}

struct margin {
    unsigned version;
    int celsius;
};

int nvmlDeviceGetMarginTemperature(void *handle, struct margin *out) {
    ENTER(handle);
    return answer(handle, "margin", (unsigned *)&out->celsius);
}

static const char *clock_key(int domain, bool maximum) {
    if (domain == 2) return maximum ? "memory_clock_max" : "memory_clock";
    if (domain == 0 || domain == 1) return maximum ? "sm_clock_max" : "sm_clock";
    return "?";
}

int nvmlDeviceGetClockInfo(void *handle, int domain, unsigned *out) {
    ENTER(handle);
    return answer(handle, clock_key(domain, false), out);
}

int nvmlDeviceGetMaxClockInfo(void *handle, int domain, unsigned *out) {
    ENTER(handle);
    return answer(handle, clock_key(domain, true), out);
}

static int reasons(void *handle, unsigned long long *out) {
    unsigned bits;
    int code = answer(handle, "throttle", &bits);
    if (code == OK) *out = bits;
    return code;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *handle, unsigned long long *out) {
    ENTER(handle);
    return reasons(handle, out);
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *handle, unsigned long long *out) {
    ENTER(handle);
    return reasons(handle, out);
}

int nvmlDeviceGetPcieThroughput(void *handle, int counter, unsigned *out) {
    ENTER(handle);
    return answer(handle, counter == 0 ? "pcie.tx" : "pcie.rx", out);
}

int nvmlDeviceGetTotalEccErrors(void *handle, int type, int counter, unsigned long long *out) {
    ENTER(handle);
    static const char *const keys[2][2] = {{"ecc.corrected", "ecc.corrected_lifetime"},
                                           {"ecc.uncorrected", "ecc.uncorrected_lifetime"}};
    struct gpu *g = whole(handle);
    double v;
    if (type < 0 || type > 1 || counter < 0 || counter > 1) return INVALID_ARGUMENT;
    if (!g || !value_at(g, keys[type][counter], now(), &v)) return NOT_SUPPORTED;
    *out = (unsigned long long)v;
    return OK;
}

int nvmlDeviceGetNvLinkState(void *handle, unsigned link, unsigned *out) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    double links, active;
    if (!g || !value_at(g, "nvlink.links", now(), &links)) return NOT_SUPPORTED;
    if (link >= links) return INVALID_ARGUMENT;
    *out = !value_at(g, "nvlink.active", now(), &active) || link < active;
    return OK;
}

struct field {
    unsigned id, scope;
    long long timestamp, latency;
    unsigned type;
    int code;
    union {
        double d;
        unsigned ui;
        unsigned long long ull;
    } value;
};

enum { NVLINK_SENT = 138, NVLINK_RECEIVED = 139, NVLINK_COUNT = 91, TYPE_UINT = 1, TYPE_ULL = 3 };

/* KiB since the start: the scenario gives KiB a second. */
static int nvlink_counter(struct gpu *g, bool sent, unsigned long long *out) {
    const char *key = sent ? "nvlink.tx" : "nvlink.rx";
    double t = now(), unused;
    if (!value_at(g, key, t, &unused)) return NOT_SUPPORTED;
    g->counter[sent] += mean_between(g, key, g->counted_until[sent], t) * (t - g->counted_until[sent]);
    g->counted_until[sent] = t;
    *out = (unsigned long long)g->counter[sent];
    return OK;
}

int nvmlDeviceGetFieldValues(void *handle, int count, struct field *fields) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    for (int i = 0; i < count; i++) {
        struct field *f = &fields[i];
        bool sent = f->id == NVLINK_SENT;
        f->code = NOT_SUPPORTED;
        if (g && f->scope == ~0u && (sent || f->id == NVLINK_RECEIVED)) {
            f->type = TYPE_ULL;
            f->code = nvlink_counter(g, sent, &f->value.ull);
        } else if (g && f->id == NVLINK_COUNT) {
            f->type = TYPE_UINT;
            f->code = answer(handle, "nvlink.links", &f->value.ui);
        }
        f->timestamp = (long long)(now() * 1e6);
    }
    return OK;
}
