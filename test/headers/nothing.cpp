// SPDX-License-Identifier: Apache-2.0
// The header under test is named on the command line, twice.
