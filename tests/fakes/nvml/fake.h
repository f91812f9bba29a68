/* A fake libnvidia-ml.so.1: what scenario.c reads from a file, nvml*.c answers as NVML would. */
#ifndef FAKE_NVML_H
#define FAKE_NVML_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    VERSION_MISMATCH = 25
};

enum { MAX_GPUS = 16, MAX_SCHEDULES = 64, MAX_POINTS = 64, MAX_PROCESSES = 16, MAX_SLICES = 8, MAX_RULES = 64 };

enum shape { STEPS, RAMP };

struct schedule { /* a value over time: steps or straight lines between points, repeated every `period` seconds if > 0 */
    char key[40];
    enum shape shape;
    double period;
    int points;
    double at[MAX_POINTS], value[MAX_POINTS];
};

struct process { /* `sm` and `mem` below zero follow the device's own figure */
    unsigned pid;
    unsigned long long memory;
    double sm, mem, from, to;
};

enum kind { A_GPU = 0x67707530, A_SLICE = 0x6d696730 };

struct gpu;

struct slice { /* a MIG device; its handle is the address of this struct */
    enum kind kind;
    struct gpu *parent;
    char name[96];
    unsigned long long total, used;
};

struct gpu { /* a device; its handle is the address of this struct */
    enum kind kind;
    int index;
    char name[96], uuid[96];
    int schedules, processes, slices;
    struct schedule schedule[MAX_SCHEDULES];
    struct process process[MAX_PROCESSES];
    struct slice slice[MAX_SLICES];
    double xid_at;
    unsigned xid;
    bool xid_told, watched;
    double counted_until[2], counter[2]; /* NVLink counters, received and sent */
};

struct rule { /* from `from` to `to` seconds `function` (or all: "*") of `gpu` (or all: -1) behaves otherwise */
    char function[64];
    int gpu;
    int code;      /* what it returns; OK for none */
    double delay;  /* how long it takes */
    double from, to;
};

struct scenario {
    char driver[80];
    int devices, rules;
    struct gpu gpu[MAX_GPUS];
    struct rule rule[MAX_RULES];
};

extern struct scenario scenario;

bool load_scenario(const char *path);                          /* prints what is wrong on stderr */
double now(void);                                              /* seconds since the start */
bool value_at(struct gpu *g, const char *key, double t, double *out);
double mean_between(struct gpu *g, const char *key, double from, double to);

int begin(void);                                               /* nvmlInit: returns a code */
int enter(void *handle, const char *function);                 /* what every call does first: returns a code */
struct gpu *whole(void *handle);                               /* the device, or NULL for a MIG handle */

#endif
