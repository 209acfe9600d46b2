// The files of web/report as texts in the binary; their source is generated when Kvasir is built.
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
