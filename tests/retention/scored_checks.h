// What holds for every policy that may drop any token.
#pragma once

#include <string>

#include "retention/table_driver.h"

namespace kvasir::test {

// Clones continue as their original; tables do not depend on each other, on the order of calls or on threads; a pass
// of one token never sees more than bound(); and all that state_checks.h checks.
void check_scored_policy(const std::string& spec);

}  // namespace kvasir::test
