/* Exits 0 when the library works as far as it can without a daemon. */
#include <gpumem/gpumem.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  gpumem_status status = GPUMEM_STATUS_INIT;
  gpumem_options options = GPUMEM_OPTIONS_INIT;
  gpumem_client* client = NULL;
  options.libcuda_path = "/no/such/libcuda.so.1";
  if (gpumem_connect(&options, &client, &status) != GPUMEM_NO_DRIVER) return 1;
  printf("libgpumem %s: %s: %s\n", gpumem_version(), gpumem_reason_name(status.reason), status.message);
  return strcmp(gpumem_reason_name(status.reason), "NO_DRIVER") == 0 ? 0 : 2;
}
