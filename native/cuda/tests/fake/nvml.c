/* A fake of NVIDIA's libnvidia-ml.so.1 for tests without a GPU: two cards with known numbers.
 *
 * `fake.conf` beside the library sets its answers, one setting a line, read at each call:
 *
 *   init=CODE      result of nvmlInit_v2; each call appends a byte to the file `inits`
 *   count=N        number of cards, at most 2
 *   card0=CODE     result of every call about card 0, and card1 for card 1
 *   cuda=CODE      result of the call for CUDA's version
 *   memory=CODE    result of calls for memory
 *   sleep_ms=N     duration of a call for the temperature
 *   throttle=BITS  reasons for low clocks
 *
 * Codes are those of nvmlReturn_t; layouts are those of nvml.h.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1024ULL * 1024ULL)

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

typedef struct card {
  int index;
  const char *name, *uuid, *bus_id;
  int major, minor, mig;
  unsigned long long total, reserved, used;
  unsigned temperature, milliwatts, limit;
  unsigned clocks[3], max_clocks[3];
} card;

static card cards[2] = {
    {0, "NVIDIA GeForce RTX 4090", "GPU-00000000-0000-0000-0000-000000000000", "00000000:01:00.0",
     8, 9, 0, 24564 * MIB, 43 * MIB, 4521 * MIB, 61, 231500, 450000,
     {2520, 2520, 10501}, {3105, 3105, 10501}},
    {1, "NVIDIA H200", "GPU-11111111-1111-1111-1111-111111111111", "00000000:81:00.0",
     9, 0, 1, 143771 * MIB, 600 * MIB, 0, 30, 75250, 700000,
     {345, 345, 3201}, {1980, 1980, 3201}},
};

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned pid; unsigned long long bytes; unsigned instance, compute; } process;

static void beside(const char *name, char *path, size_t size) {
  Dl_info self;
  dladdr((void *)cards, &self);
  snprintf(path, size, "%s", self.dli_fname);
  char *slash = strrchr(path, '/');
  snprintf(slash + 1, size - (slash + 1 - path), "%s", name);
}

static int setting(const char *name, int otherwise) {
  char path[4096], line[64], key[32];
  int value;
  beside("fake.conf", path, sizeof path);
  FILE *file = fopen(path, "r");
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "%31[^=]=%d", key, &value) == 2 && !strcmp(key, name)) otherwise = value;
  if (file) fclose(file);
  return otherwise;
}

static int said(const char *text, char *out, unsigned size) {
  if (strlen(text) >= size) return INSUFFICIENT_SIZE;
  strcpy(out, text);
  return SUCCESS;
}

static int state(const card *card) { return setting(card->index ? "card1" : "card0", SUCCESS); }

int nvmlInit_v2(void) {
  char path[4096];
  beside("inits", path, sizeof path);
  FILE *file = fopen(path, "a");
  if (file) { fputc('.', file); fclose(file); }
  return setting("init", SUCCESS);
}

int nvmlShutdown(void) { return SUCCESS; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) { return said("580.159.03", out, size); }
int nvmlSystemGetNVMLVersion(char *out, unsigned size) { return said("13.580.159.03", out, size); }

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
 *version = 13000;
  return setting("cuda", SUCCESS);
}

int nvmlSystemGetProcessName(unsigned pid, char *out, unsigned size) {
  return pid == 4242 ? said("/usr/bin/beam.smp", out, size) : NOT_FOUND;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
 *count = setting("count", 2);
  return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, card **card) {
  if (index >= (unsigned)setting("count", 2)) return INVALID_ARGUMENT;
 *card = &cards[index];
  return state(*card);
}

int nvmlDeviceGetName(card *card, char *out, unsigned size) {
  return state(card) ? state(card) : said(card->name, out, size);
}

int nvmlDeviceGetUUID(card *card, char *out, unsigned size) { return said(card->uuid, out, size); }

int nvmlDeviceGetPciInfo_v3(card *card, pci *info) {
  memset(info, 0, sizeof *info);
  return said(card->bus_id, info->bus_id, sizeof info->bus_id);
}

int nvmlDeviceGetCudaComputeCapability(card *card, int *major, int *minor) {
 *major = card->major;
 *minor = card->minor;
  return SUCCESS;
}

int nvmlDeviceGetMigMode(card *card, unsigned *now, unsigned *pending) {
 *now = *pending = card->mig;
  return card->mig ? SUCCESS : NOT_SUPPORTED;
}

int nvmlDeviceGetMemoryInfo_v2(card *card, memory *info) {
  if (info->version != (sizeof(memory) | 2u << 24)) return INVALID_ARGUMENT;
  info->total = card->total;
  info->reserved = card->reserved;
  info->used = card->used;
  info->free = card->total - card->reserved - card->used;
  return setting("memory", SUCCESS);
}

int nvmlDeviceGetUtilizationRates(card *card, rates *out) {
 *out = (rates){45, 20};
  return card->mig ? NOT_SUPPORTED : SUCCESS;
}

int nvmlDeviceGetTemperature(card *card, int sensor, unsigned *celsius) {
  usleep(1000 * setting("sleep_ms", 0));
 *celsius = card->temperature;
  return sensor ? INVALID_ARGUMENT : SUCCESS;
}

int nvmlDeviceGetPowerUsage(card *card, unsigned *milliwatts) {
 *milliwatts = card->milliwatts;
  return SUCCESS;
}

int nvmlDeviceGetEnforcedPowerLimit(card *card, unsigned *milliwatts) {
 *milliwatts = card->limit;
  return SUCCESS;
}

int nvmlDeviceGetClockInfo(card *card, unsigned clock, unsigned *mhz) {
  if (clock > 2) return NOT_SUPPORTED;
 *mhz = card->clocks[clock];
  return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(card *card, unsigned long long *bits) {
  *bits = (unsigned long long)setting("throttle", 0);
  return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(card *card, unsigned clock, unsigned *mhz) {
  if (clock > 2) return NOT_SUPPORTED;
 *mhz = card->max_clocks[clock];
  return SUCCESS;
}

static int list(const process *from, unsigned n, unsigned *count, process *out) {
  int fits = n <= *count;
 *count = n;
  if (!fits) return INSUFFICIENT_SIZE;
  memcpy(out, from, n * sizeof *from);
  return SUCCESS;
}

/* A process with compute and graphics contexts, one of another container, one with a graphics context only. */
int nvmlDeviceGetComputeRunningProcesses_v3(card *card, unsigned *count, process *out) {
  static const process found[] = {{4242, 4000 * MIB, ~0u, ~0u}, {77, ~0ULL, ~0u, ~0u}};
  static const process in_instance[] = {{4242, 10 * MIB, 3, 0}};
  return card->mig ? list(in_instance, 1, count, out) : list(found, 2, count, out);
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(card *card, unsigned *count, process *out) {
  static const process found[] = {{4242, 4000 * MIB, ~0u, ~0u}, {9, 3 * MIB, ~0u, ~0u}};
  return card->mig ? NOT_SUPPORTED : list(found, 2, count, out);
}
