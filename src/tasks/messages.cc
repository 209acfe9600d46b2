#include "tasks/messages.h"

#include "text/utf8.h"

namespace kvasir {
namespace {

constexpr std::size_t kMostBytes = 3000;  // more than the names of all tasks or metrics take

}  // namespace

std::string_view json_reason(std::string_view error) {
  if (const std::size_t number = error.find("] "); error.starts_with('[') && number != std::string_view::npos)
    error.remove_prefix(number + 2);
  return error.substr(0, error.find("; last read"));
}

std::string one_line(std::string_view message) {
  std::string line;
  while (!message.empty() && line.size() < kMostBytes) {
    const Utf8Unit unit = first_utf8_unit(message);
    const auto lead = static_cast<unsigned char>(message.front());
    if (unit.kind != Utf8Unit::Kind::kComplete) {
      line += "\xEF\xBF\xBD";
    } else if (lead < 0x20 || lead == 0x7F) {
      line += ' ';
    } else {
      line += message.substr(0, unit.length);
    }
    message.remove_prefix(unit.length);
  }
  if (!message.empty()) line += "...";
  return line;
}

Status one_line(const Status& status) {
  return status.ok() ? status : status.with_message(one_line(status.message()));
}

}  // namespace kvasir
