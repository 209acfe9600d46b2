// The files of web/inspector, embedded in the binary by a generated source file.
// Thread-safety: constants.
#pragma once

#include <string_view>

namespace kvasir::server {

std::string_view index_html();
std::string_view inspector_css();
std::string_view app_js();
std::string_view api_js();
std::string_view chat_js();
std::string_view documents_js();
std::string_view markdown_js();
std::string_view storage_js();
std::string_view tokens_js();
std::string_view cache_js();
std::string_view draw_js();
std::string_view marked_js();
std::string_view icon_svg();

}  // namespace kvasir::server
