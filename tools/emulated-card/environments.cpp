#include "emulate.h"
#include "environments.cu"

EMULATED(env_step_cart_pole)
EMULATED(env_step_cart_pole_velocity_less)
EMULATED(env_step_mountain_car)
EMULATED(env_step_mountain_car_continuous)
EMULATED(env_step_acrobot)
EMULATED(env_step_pendulum)
EMULATED(env_step_duel)
