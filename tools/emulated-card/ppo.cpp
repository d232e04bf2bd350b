#include "emulate.h"
#include "ppo.cu"

EMULATED(ppo_moments)
EMULATED(ppo_loss)
