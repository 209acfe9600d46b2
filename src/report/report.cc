#include "report/report.h"

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>

#include "base/check.h"
#include "base/mapped_file.h"
#include "base/ordered_json.h"
#include "base/status.h"
#include "report/assets.h"
#include "report/encode.h"

namespace kvasir::report {
namespace {

bool has_chart(const Report& report) {
  const auto is_chart = [](const Block& block) {
    return std::holds_alternative<LineChart>(block) || std::holds_alternative<BarChart>(block) ||
           std::holds_alternative<HeatMap>(block);
  };
  return std::any_of(report.sections.begin(), report.sections.end(), [&](const Section& section) {
    return std::any_of(section.blocks.begin(), section.blocks.end(), is_chart);
  });
}

// Returns JSON that is safe inside a <script>: without '<', no end tag, comment or other script can begin in it. Bytes
// that are not UTF-8 become U+FFFD.
std::string script_json(const nlohmann::ordered_json& json) {
  const std::string text = dump_line(json);
  std::string out;
  out.reserve(text.size());
  for (const char c : text) c == '<' ? void(out += "\\u003c") : out.push_back(c);
  return out;
}

std::string html_text(std::string_view text) {
  const std::string json = nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  const auto valid = nlohmann::json::parse(json).get<std::string>();
  std::string out;
  for (const char c : valid) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\0': break;  // HTML has no such character
      default: out.push_back(c);
    }
  }
  return out;
}

// Returns the page's nonce: FNV-1a of the data. Scripts without it do not run, so injected markup cannot execute. Equal
// data gives equal bytes, and a string cannot predict the nonce of the page that contains it.
std::string nonce_of(std::string_view data) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const char c : data) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3;
  return fmt::format("{:016x}", hash);
}

// Replaces each {{name}} of the template by value(name). Inserted text is not expanded again.
template <class Value>
std::string fill_in(std::string_view page, const Value& value) {
  std::string out;
  for (;;) {
    const std::size_t begin = page.find("{{");
    if (begin == std::string_view::npos) return out.append(page);
    const std::size_t end = page.find("}}", begin);
    KVASIR_CHECK(end != std::string_view::npos);
    out.append(page.substr(0, begin)).append(value(page.substr(begin + 2, end - begin - 2)));
    page.remove_prefix(end + 2);
  }
}

}  // namespace

Result<std::string> render_report(const Report& report) {
  KVASIR_ASSIGN_OR_RETURN(const auto json, encode(report));
  const std::string data = script_json(json);
  const std::string nonce = nonce_of(data);
  std::string script;
  for (const std::string_view part : {common_js(), charts_js(), heat_map_js(), tokens_js(), report_js()})
    script.append(part).push_back('\n');
  const std::string title = html_text(report.title);
  const bool chart = has_chart(report);
  return fill_in(page_template(), [&](std::string_view name) -> std::string_view {
    if (name == "title") return title;
    if (name == "nonce") return nonce;
    if (name == "style") return report_css();
    if (name == "plotly") return chart ? plotly_js() : std::string_view{};
    if (name == "data") return data;
    KVASIR_CHECK(name == "script");
    return script;
  });
}

Status write_report(const Report& report, const std::string& path) {
  KVASIR_ASSIGN_OR_RETURN(const std::string page, render_report(report));
  return write_file(path, std::as_bytes(std::span(page)));
}

}  // namespace kvasir::report
