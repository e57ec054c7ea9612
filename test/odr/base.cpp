// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"
#include "spy.hpp"

const void* kernel_of_base();
const void* kernel_of_base() { return kernel_of_all_reduce<struct base>(); }

kernel_list kernels_of_base();
kernel_list kernels_of_base() { return kernels<struct base>(); }
