/* A "driver" of CUDA 11.2 that has next to nothing: what the loader says of it is tested. */
int cuDriverGetVersion(int* version) {
  *version = 11020;
  return 0;
}
int cuInit(unsigned int flags) { return (int)flags; }
int cuGetErrorName(int error, const char** text) {
  *text = "NAME";
  return error < 0;
}
int cuGetErrorString(int error, const char** text) {
  *text = "text";
  return error < 0;
}
int cuDeviceGet(int* device, int ordinal) { return (*device = ordinal); }
int cuDeviceGetCount(int* count) { return (*count = 0); }
int cuDeviceGetName(char* name, int length, int device) { return (*name = 0), length + device; }
