/* Start and end, the clock, and what every call goes through: hangs, return codes, the log of calls. */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int users;
static double started = -1;
static FILE *call_log;

static double monotonic(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

double now(void) { return monotonic() - started; }

static int start(void) {
    const char *log_path = getenv("FAKE_NVML_LOG");
    const char *start_text = getenv("FAKE_NVML_START");
    if (log_path && *log_path) call_log = fopen(log_path, "a");
    started = start_text && *start_text ? strtod(start_text, NULL) : monotonic();
    return load_scenario(getenv("FAKE_NVML_SCENARIO")) ? OK : 999;
}

static int obey_rules(int gpu, const char *function) {
    int code = OK;
    for (int i = 0; i < scenario.rules; i++) {
        struct rule *r = &scenario.rule[i];
        bool for_it = strcmp(r->function, function) == 0 || (r->function[0] == '*' && gpu >= 0);
        double t = now();
        if (!for_it || (r->gpu >= 0 && r->gpu != gpu) || t < r->from || t >= r->to) continue;
        if (r->code != OK) code = r->code;
        if (r->delay <= 0) continue;
        /* A hang ends when its time is over, however late the call came. */
        double wait = r->to < 1e300 ? r->to - t : r->delay;
        struct timespec left = {(time_t)wait, (long)((wait - (double)(time_t)wait) * 1e9)};
        while (nanosleep(&left, &left) != 0) {
        }
    }
    return code;
}

struct gpu *whole(void *handle) {
    struct gpu *g = handle;
    return g && g->kind == A_GPU ? g : NULL;
}

static int index_of(void *handle) {
    if (!handle) return -1;
    struct gpu *g = whole(handle);
    return g ? g->index : ((struct slice *)handle)->parent->index;
}

int enter(void *handle, const char *function) {
    int code = users > 0 ? obey_rules(index_of(handle), function) : UNINITIALIZED;
    if (call_log) {
        fprintf(call_log, "%.6f %ld %s %d %d\n", now(), (long)syscall(SYS_gettid), function, index_of(handle), code);
        fflush(call_log);
    }
    return code;
}

int begin(void) {
    if (started < 0) {
        int code = start();
        if (code != OK) return code;
    }
    int code = obey_rules(-1, "nvmlInit");
    if (code == OK) users++;
    return code;
}

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    return begin();
}

int nvmlInit_v2(void) { return begin(); }

int nvmlInit(void) { return begin(); }

int nvmlShutdown(void) {
    int code = enter(NULL, __func__);
    if (code == OK) users--;
    return code;
}

const char *nvmlErrorString(int code) {
    static char text[32];
    snprintf(text, sizeof text, "fake error %d", code);
    return text;
}

int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    int code = enter(NULL, __func__);
    if (code == OK) snprintf(out, size, "%s", scenario.driver);
    return code;
}

int nvmlSystemGetCudaDriverVersion_v2(int *out) {
    *out = 12080;
    return enter(NULL, __func__);
}

int nvmlSystemGetCudaDriverVersion(int *out) { return nvmlSystemGetCudaDriverVersion_v2(out); }

int nvmlSystemGetNVMLVersion(char *out, unsigned size) {
    int code = enter(NULL, __func__);
    if (code == OK) snprintf(out, size, "12.%s", scenario.driver);
    return code;
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
    char path[64];
    int code = enter(NULL, __func__);
    if (code != OK) return code;
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "r");
    if (!file) return NOT_FOUND;
    size_t n = fread(out, 1, size - 1, file);
    out[n] = 0;
    fclose(file);
    return OK;
}
