// SPDX-License-Identifier: Apache-2.0
// Everything that needs neither torch nor MPI.
#pragma once

#include "rankfold/assert.hpp"
#include "rankfold/async.hpp"
#include "rankfold/bootstrap/environment.hpp"
#include "rankfold/communicator.hpp"
#include "rankfold/dtype.hpp"
#include "rankfold/epilogues.hpp"
#include "rankfold/error.hpp"
#include "rankfold/fingerprint.hpp"
#include "rankfold/kernel/dispatch.hpp"
#include "rankfold/reduction.hpp"
#include "rankfold/transport.hpp"
#include "rankfold/transport/self.hpp"
#include "rankfold/transport/shm.hpp"
#include "rankfold/transport/threads.hpp"
#include "rankfold/tuner.hpp"
#include "rankfold/tuning.hpp"
#include "rankfold/tuning_file.hpp"
#include "rankfold/version.hpp"
