#include "tests/unit/sim/sim_machine.h"
