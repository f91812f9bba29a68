/* The scenario file: README.md describes its lines. */
#define _GNU_SOURCE
#include "fake.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct scenario scenario;

static double number(const char *text) {
    char *end = NULL;
    double value = strtod(text, &end);
    if (*end == 'K') value *= 1024.0;
    if (*end == 'M') value *= 1048576.0;
    if (*end == 'G') value *= 1073741824.0;
    return value;
}

static unsigned pid_of(const char *text) {
    if (strcmp(text, "self") == 0) return (unsigned)getpid();
    if (strcmp(text, "parent") == 0) return (unsigned)getppid();
    if (text[0] == '$') {
        const char *set = getenv(text + 1);
        return set ? (unsigned)strtoul(set, NULL, 10) : 0;
    }
    return (unsigned)strtoul(text, NULL, 10);
}

/* Copies the rest of a line; \xNN stands for a byte. */
static void text_of(char *out, size_t size, const char *text) {
    size_t n = 0;
    while (*text && n + 1 < size) {
        if (text[0] == '\\' && text[1] == 'x' && text[2] && text[3]) {
            char hex[3] = {text[2], text[3], 0};
            out[n++] = (char)strtol(hex, NULL, 16);
            text += 4;
        } else {
            out[n++] = *text++;
        }
    }
    out[n] = 0;
}

static struct schedule *slot(struct gpu *g, const char *key) {
    for (int i = 0; i < g->schedules; i++)
        if (strcmp(g->schedule[i].key, key) == 0) return &g->schedule[i];
    if (g->schedules == MAX_SCHEDULES) return NULL;
    return &g->schedule[g->schedules++];
}

/* KEY NUMBER | KEY [ramp] [every SECONDS] T:V T:V ... | KEY - (not supported) */
static bool read_schedule(struct gpu *g, const char *key, char *rest) {
    struct schedule *s = slot(g, key);
    if (!s) return false;
    memset(s, 0, sizeof *s);
    snprintf(s->key, sizeof s->key, "%s", key);
    char *save = NULL;
    for (char *word = strtok_r(rest, " \t", &save); word; word = strtok_r(NULL, " \t", &save)) {
        if (strcmp(word, "-") == 0) continue;
        if (strcmp(word, "ramp") == 0) {
            s->shape = RAMP;
            continue;
        }
        if (strcmp(word, "every") == 0) {
            word = strtok_r(NULL, " \t", &save);
            if (!word) return false;
            s->period = number(word);
            continue;
        }
        if (s->points == MAX_POINTS) return false;
        char *colon = strchr(word, ':');
        s->at[s->points] = colon ? number(word) : 0;
        s->value[s->points++] = number(colon ? colon + 1 : word);
    }
    return true;
}

static bool read_process(struct gpu *g, const char *rest) {
    char pid[64], memory[32], sm[32], mem[32];
    double from = 0, to = DBL_MAX;
    if (sscanf(rest, "%63s %31s %31s %31s %lf %lf", pid, memory, sm, mem, &from, &to) < 4) return false;
    int which = 0; /* a later line about the same process replaces the earlier one */
    while (which < g->processes && g->process[which].pid != pid_of(pid)) which++;
    if (which == MAX_PROCESSES) return false;
    if (which == g->processes) g->processes++;
    struct process *p = &g->process[which];
    p->pid = pid_of(pid);
    p->memory = strcmp(memory, "-") == 0 ? ~0ULL : (unsigned long long)number(memory);
    p->sm = strcmp(sm, "busy") == 0 ? -1 : number(sm);
    p->mem = strcmp(mem, "busy") == 0 ? -1 : number(mem);
    p->from = from;
    p->to = to;
    return true;
}

static bool read_slice(struct gpu *g, const char *rest) {
    char name[96], total[32], used[32];
    if (g->slices == MAX_SLICES || sscanf(rest, "%95s %31s %31s", name, total, used) != 3) return false;
    struct slice *s = &g->slice[g->slices++];
    s->kind = A_SLICE;
    s->parent = g;
    snprintf(s->name, sizeof s->name, "%s MIG %.60s", g->name, name);
    s->total = (unsigned long long)number(total);
    s->used = (unsigned long long)number(used);
    return true;
}

static bool add_rule(const char *function, int gpu, int code, double delay, double from, double to) {
    if (scenario.rules == MAX_RULES) return false;
    struct rule *r = &scenario.rule[scenario.rules++];
    snprintf(r->function, sizeof r->function, "%s", function);
    r->gpu = gpu;
    r->code = code;
    r->delay = delay;
    r->from = from;
    r->to = to;
    return true;
}

static bool read_return(int gpu, const char *rest) {
    char function[64];
    int code;
    double from = 0, to = DBL_MAX;
    if (sscanf(rest, "%63s %d %lf %lf", function, &code, &from, &to) < 2) return false;
    return add_rule(function, gpu, code, 0, from, to);
}

static bool read_delay(const char *rest, bool forever) {
    char function[64];
    double seconds = 1e9, from = 0;
    if (forever) {
        if (sscanf(rest, "%63s %lf %lf", function, &from, &seconds) < 2) return false;
        return add_rule(function, -1, OK, seconds, from, from + seconds);
    }
    if (sscanf(rest, "%63s %lf", function, &seconds) != 2) return false;
    return add_rule(function, -1, OK, seconds, 0, DBL_MAX);
}

static bool read_gpu_line(struct gpu *g, const char *key, char *rest) {
    if (strcmp(key, "name") == 0) return text_of(g->name, sizeof g->name, rest), true;
    if (strcmp(key, "uuid") == 0) return text_of(g->uuid, sizeof g->uuid, rest), true;
    if (strcmp(key, "process") == 0) return read_process(g, rest);
    if (strcmp(key, "slice") == 0) return read_slice(g, rest);
    if (strcmp(key, "return") == 0) return read_return(g->index, rest);
    if (strcmp(key, "lost") == 0) return add_rule("*", g->index, GPU_IS_LOST, 0, number(rest), DBL_MAX);
    if (strcmp(key, "xid") == 0) return sscanf(rest, "%u %lf", &g->xid, &g->xid_at) == 2;
    return read_schedule(g, key, rest);
}

static bool read_gpu(const char *rest) {
    char which[16], key[40];
    int used = 0;
    if (sscanf(rest, "%15s %39s %n", which, key, &used) < 2) return false;
    for (int i = 0; i < MAX_GPUS; i++) {
        if (which[0] != '*' && atoi(which) != i) continue;
        char copy[2048]; /* strtok writes into it */
        snprintf(copy, sizeof copy, "%s", rest + used);
        if (!read_gpu_line(&scenario.gpu[i], key, copy)) return false;
    }
    return true;
}

static bool read_file(const char *path);

static bool read_line(const char *path, char *line) {
    char key[32];
    int used = 0;
    if (sscanf(line, "%31s %n", key, &used) < 1 || key[0] == '#') return true;
    char *rest = line + used;
    if (strcmp(key, "include") == 0) {
        char other[4096];
        const char *slash = strrchr(path, '/');
        if (rest[0] == '/') slash = NULL;
        snprintf(other, sizeof other, "%.*s%s", slash ? (int)(slash - path + 1) : 0, path, rest);
        return read_file(other);
    }
    if (strcmp(key, "driver") == 0) return text_of(scenario.driver, sizeof scenario.driver, rest), true;
    if (strcmp(key, "devices") == 0) return (scenario.devices = atoi(rest)) <= MAX_GPUS;
    if (strcmp(key, "missing") == 0) return true; /* the build leaves the symbol out */
    if (strcmp(key, "init") == 0) return add_rule("nvmlInit", -1, atoi(rest), 0, 0, DBL_MAX);
    if (strcmp(key, "return") == 0) return read_return(-1, rest);
    if (strcmp(key, "hang") == 0) return read_delay(rest, true);
    if (strcmp(key, "delay") == 0) return read_delay(rest, false);
    if (strcmp(key, "gpu") == 0) return read_gpu(rest);
    return false;
}

static bool read_file(const char *path) {
    FILE *file = fopen(path, "r");
    if (!file) {
        fprintf(stderr, "fake nvml: cannot open %s\n", path);
        return false;
    }
    char line[2048];
    bool fine = true;
    for (int count = 1; fine && fgets(line, sizeof line, file); count++) {
        line[strcspn(line, "\r\n")] = 0;
        fine = read_line(path, line);
        if (!fine) fprintf(stderr, "fake nvml: %s:%d does not make sense\n", path, count);
    }
    fclose(file);
    return fine;
}

bool load_scenario(const char *path) {
    memset(&scenario, 0, sizeof scenario);
    for (int i = 0; i < MAX_GPUS; i++) {
        struct gpu *g = &scenario.gpu[i];
        g->kind = A_GPU;
        g->index = i;
        snprintf(g->uuid, sizeof g->uuid, "GPU-fa4e0000-0000-4000-8000-%012d", i);
    }
    scenario.devices = 1;
    return path && read_file(path);
}

bool value_at(struct gpu *g, const char *key, double t, double *out) {
    for (int i = 0; i < g->schedules; i++) {
        struct schedule *s = &g->schedule[i];
        if (strcmp(s->key, key) != 0 || s->points == 0) continue;
        if (s->period > 0) t -= s->period * (double)(long long)(t / s->period);
        int last = 0;
        while (last + 1 < s->points && s->at[last + 1] <= t) last++;
        *out = s->value[last];
        if (s->shape == RAMP && last + 1 < s->points && t > s->at[last]) {
            double way = (t - s->at[last]) / (s->at[last + 1] - s->at[last]);
            *out += way * (s->value[last + 1] - s->value[last]);
        }
        return true;
    }
    return false;
}

double mean_between(struct gpu *g, const char *key, double from, double to) {
    enum { PARTS = 32 };
    double sum = 0, value = 0;
    for (int i = 0; i < PARTS; i++)
        if (value_at(g, key, from + (to - from) * (i + 0.5) / PARTS, &value)) sum += value;
    return sum / PARTS;
}
