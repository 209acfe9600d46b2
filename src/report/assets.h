// The files of web/report, embedded in the binary by a generated source file.
// Thread-safety: constants.
#pragma once

#include <string_view>

namespace kvasir::report {

std::string_view page_template();  // HTML with {{title}}, {{style}}, {{plotly}}, {{data}} and {{script}} to fill in
std::string_view report_css();
std::string_view common_js();
std::string_view charts_js();
std::string_view heat_map_js();
std::string_view tokens_js();
std::string_view report_js();
std::string_view plotly_js();

}  // namespace kvasir::report
