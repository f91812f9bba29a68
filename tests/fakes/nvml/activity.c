/* Processes, MIG, performance monitoring and events. */
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define ENTER(handle)                     \
    int code = enter((handle), __func__); \
    if (code != OK) return code

struct process_info {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
};

static bool alive(const struct process *p) { return now() >= p->from && now() < p->to && p->pid != 0; }

static int running(void *handle, unsigned *count, struct process_info *out) {
    struct gpu *g = whole(handle);
    unsigned room = *count, n = 0;
    double none;
    if (!g || value_at(g, "no_processes", now(), &none)) return NOT_SUPPORTED;
    for (int i = 0; i < g->processes; i++) {
        if (!alive(&g->process[i])) continue;
        if (n < room) out[n] = (struct process_info){g->process[i].pid, g->process[i].memory, ~0u, ~0u};
        n++;
    }
    *count = n;
    return n > room ? INSUFFICIENT_SIZE : OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void *handle, unsigned *count, struct process_info *out) {
    ENTER(handle);
    return running(handle, count, out);
}

int nvmlDeviceGetComputeRunningProcesses_v2(void *handle, unsigned *count, struct process_info *out) {
    ENTER(handle);
    return running(handle, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(void *handle, unsigned *count, struct process_info *out) {
    (void)out;
    ENTER(handle);
    *count = 0;
    return OK;
}

struct process_sample {
    unsigned pid;
    unsigned long long timestamp;
    unsigned sm, mem, encoder, decoder;
};

static unsigned share(struct gpu *g, double figure, const char *key) {
    double v = figure;
    if (figure < 0 && !value_at(g, key, now(), &v)) v = 0;
    return (unsigned)(long long)v;
}

/* As the real one: only processes that used the device since `since` (µs of the wall clock). */
int nvmlDeviceGetProcessUtilization(void *handle, struct process_sample *out, unsigned *count,
                                    unsigned long long since) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    double unused;
    struct timespec wall;
    if (!g || !value_at(g, "busy", now(), &unused)) return NOT_SUPPORTED;
    clock_gettime(CLOCK_REALTIME, &wall);
    unsigned long long stamp = (unsigned long long)wall.tv_sec * 1000000 + (unsigned long long)wall.tv_nsec / 1000;
    unsigned n = 0;
    for (int i = 0; i < g->processes; i++) {
        struct process *p = &g->process[i];
        unsigned sm = share(g, p->sm, "busy"), mem = share(g, p->mem, "memory_busy");
        if (!alive(p) || (sm == 0 && mem == 0) || stamp <= since) continue;
        if (out && n < *count) out[n] = (struct process_sample){p->pid, stamp, sm, mem, 0, 0};
        n++;
    }
    bool fits = out && n <= *count;
    *count = n;
    if (n == 0) return NOT_FOUND;
    return fits ? OK : INSUFFICIENT_SIZE;
}

int nvmlDeviceGetMigMode(void *handle, unsigned *current, unsigned *pending) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    double mode;
    if (!g || !value_at(g, "mig", now(), &mode)) return NOT_SUPPORTED;
    *current = *pending = (unsigned)mode;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void *handle, unsigned *out) {
    ENTER(handle);
    *out = MAX_SLICES - 1;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void *handle, unsigned index, void **out) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    if (!g) return INVALID_ARGUMENT;
    if (index >= (unsigned)g->slices) return NOT_FOUND;
    *out = &g->slice[index];
    return OK;
}

static int slice_number(void *handle, unsigned *out) {
    if (whole(handle)) return NOT_SUPPORTED;
    struct slice *s = handle;
    *out = (unsigned)(s - s->parent->slice);
    return OK;
}

int nvmlDeviceGetGpuInstanceId(void *handle, unsigned *out) {
    ENTER(handle);
    return slice_number(handle, out);
}

int nvmlDeviceGetComputeInstanceId(void *handle, unsigned *out) {
    ENTER(handle);
    *out = 0;
    return whole(handle) ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *handle, void **out) {
    ENTER(handle);
    if (whole(handle)) return INVALID_ARGUMENT;
    *out = ((struct slice *)handle)->parent;
    return OK;
}

int nvmlDeviceIsMigDeviceHandle(void *handle, unsigned *out) {
    ENTER(handle);
    *out = whole(handle) == NULL;
    return OK;
}

/* Performance monitoring: a sample is a device and a moment, a metric the mean between two of them. */

struct gpm_sample {
    struct gpu *gpu;
    double at;
};

struct gpm_metric {
    unsigned id;
    int code;
    double value;
    const char *names[3];
};

struct gpm_metrics {
    unsigned version, count;
    struct gpm_sample *first, *second;
    struct gpm_metric metric[];
};

struct gpm_support {
    unsigned version, supported;
};

static const struct {
    unsigned id;
    const char *key;
} gpm_keys[] = {{2, "gpm.sm"},    {3, "gpm.occupancy"}, {5, "gpm.tensor"},   {10, "gpm.dram"},
                {11, "gpm.fp64"}, {12, "gpm.fp32"},     {13, "gpm.fp16"},    {20, "gpm.pcie_tx"},
                {21, "gpm.pcie_rx"}, {60, "gpm.nvlink_rx"}, {61, "gpm.nvlink_tx"}};

int nvmlGpmQueryDeviceSupport(void *handle, struct gpm_support *out) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    double unused;
    out->supported = g && value_at(g, "gpm.sm", now(), &unused);
    return OK;
}

int nvmlGpmSampleAlloc(struct gpm_sample **out) {
    ENTER(NULL);
    *out = calloc(1, sizeof **out);
    return OK;
}

int nvmlGpmSampleFree(struct gpm_sample *sample) {
    ENTER(NULL);
    free(sample);
    return OK;
}

int nvmlGpmSampleGet(void *handle, struct gpm_sample *sample) {
    ENTER(handle);
    struct gpu *g = whole(handle);
    double unused;
    if (!g || !value_at(g, "gpm.sm", now(), &unused)) return NOT_SUPPORTED;
    *sample = (struct gpm_sample){g, now()};
    return OK;
}

int nvmlGpmMetricsGet(struct gpm_metrics *m) {
    ENTER(m->first ? (void *)m->first->gpu : NULL);
    if (m->version != 1) return VERSION_MISMATCH;
    if (!m->first || !m->second || !m->first->gpu || m->second->at <= m->first->at) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < m->count; i++) {
        struct gpm_metric *one = &m->metric[i];
        double unused;
        one->code = NOT_SUPPORTED;
        for (size_t k = 0; k < sizeof gpm_keys / sizeof *gpm_keys; k++) {
            if (gpm_keys[k].id != one->id || !value_at(m->first->gpu, gpm_keys[k].key, 0, &unused)) continue;
            one->value = mean_between(m->first->gpu, gpm_keys[k].key, m->first->at, m->second->at);
            one->code = OK;
        }
    }
    return OK;
}

/* Events: an Xid of a device is told once, at its time. */

enum { XID_EVENT = 8 };

static int event_set;

struct event {
    void *device;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
};

int nvmlEventSetCreate(void **out) {
    ENTER(NULL);
    *out = &event_set;
    return OK;
}

int nvmlEventSetFree(void *set) {
    (void)set;
    ENTER(NULL);
    for (int i = 0; i < MAX_GPUS; i++) scenario.gpu[i].watched = false;
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(void *handle, unsigned long long *out) {
    ENTER(handle);
    double none;
    struct gpu *g = whole(handle);
    *out = g && !value_at(g, "no_events", 0, &none) ? XID_EVENT : 0;
    return OK;
}

int nvmlDeviceRegisterEvents(void *handle, unsigned long long types, void *set) {
    (void)set;
    ENTER(handle);
    double none;
    struct gpu *g = whole(handle);
    if (!g || types != XID_EVENT || value_at(g, "no_events", 0, &none)) return NOT_SUPPORTED;
    g->watched = true;
    return OK;
}

int nvmlEventSetWait_v2(void *set, struct event *out, unsigned milliseconds) {
    (void)set;
    (void)milliseconds; /* never waits: an event is there or it is not */
    ENTER(NULL);
    for (int i = 0; i < scenario.devices; i++) {
        struct gpu *g = &scenario.gpu[i];
        if (!g->watched || g->xid_told || g->xid == 0 || now() < g->xid_at) continue;
        g->xid_told = true;
        *out = (struct event){g, XID_EVENT, g->xid, ~0u, ~0u};
        return OK;
    }
    return TIMEOUT;
}

static int coder(void *handle, const char *key, unsigned *out, unsigned *period) {
    struct gpu *g = whole(handle);
    double v;
    if (!g || !value_at(g, key, now(), &v)) return NOT_SUPPORTED;
    *out = (unsigned)(long long)v;
    *period = 167000; /* µs */
    return OK;
}

int nvmlDeviceGetEncoderUtilization(void *handle, unsigned *out, unsigned *period) {
    ENTER(handle);
    return coder(handle, "encoder", out, period);
}

int nvmlDeviceGetDecoderUtilization(void *handle, unsigned *out, unsigned *period) {
    ENTER(handle);
    return coder(handle, "decoder", out, period);
}
