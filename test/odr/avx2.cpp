// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"
#include "spy.hpp"

const void* kernel_of_avx2();
const void* kernel_of_avx2() { return kernel_of_all_reduce<struct avx2>(); }

kernel_list kernels_of_avx2();
kernel_list kernels_of_avx2() { return kernels<struct avx2>(); }
