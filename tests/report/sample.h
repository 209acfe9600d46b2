// A report with every kind of figure, as rich as a real one, and strings that try to leave their place.
#pragma once

#include <string>

#include "report/report.h"

namespace kvasir::report::test {

// If it were read as markup anywhere, it would set window.hostile.
inline const std::string kHostile =
    "</script></style></title><img src=x onerror=\"window.hostile=1\"><!--<script>window.hostile=1</script>";

Report sample_report();

}  // namespace kvasir::report::test
