// A fake of the part of CUDA that describes a machine: the driver of an imagined card. Environment variables set its
// numbers, so that one build imitates all machines.
#include <stdlib.h>
#include <string.h>

static int number(const char *name, int otherwise) {
  const char *text = getenv(name);
  return text ? atoi(text) : otherwise;
}

#ifdef DRIVER
int cuInit(unsigned flags) { return flags ? 1 : number("FAKE_INIT", 0); }

int cuDriverGetVersion(int *version) {
  *version = number("FAKE_VERSION", 13000);
  return 0;
}

int cuDeviceGetCount(int *count) {
  *count = number("FAKE_COUNT", 1);
  return 0;
}

int cuDeviceGet(int *card, int ordinal) {
  *card = ordinal;
  return 0;
}

// CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR
int cuDeviceGetAttribute(int *value, int attribute, int card) {
  if (card >= number("FAKE_COUNT", 1) || (attribute != 75 && attribute != 76)) return 1;
  *value = attribute == 75 ? number("FAKE_MAJOR", 9) : 0;
  return 0;
}

int cuDeviceGetName(char *name, int length, int card) {
  strncpy(name, card == 0 ? "Imagined" : "", length);
  return 0;
}
#endif

#ifdef LIBRARIES
int cublasGetProperty(int which, int *value) {
  *value = which == 0 ? 13 : 0;
  return 0;
}

size_t cublasLtGetVersion(void) { return 130000; }

int curandGetVersion(int *version) {
  *version = 100400;
  return 0;
}
#endif
