#include "tenants/dates.h"

#include <fmt/core.h>

#include <charconv>
#include <chrono>

namespace kvasir::tenants {
namespace {

// Returns the value of a text of digits; nullopt for any other text.
std::optional<int> digits(std::string_view text) {
  int number = 0;
  if (text.empty() || text.front() < '0' || text.front() > '9') return std::nullopt;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

// Returns whether a text has digits where `form` has them and equals it elsewhere.
bool has_form(std::string_view text, std::string_view form) {
  if (text.size() != form.size()) return false;
  for (std::size_t i = 0; i < form.size(); ++i) {
    const bool digit = text[i] >= '0' && text[i] <= '9';
    if (form[i] == '0' ? !digit : text[i] != form[i]) return false;
  }
  return true;
}

constexpr std::string_view kDayForm = "0000-00-00";
constexpr std::string_view kMomentForm = "0000-00-00T00:00:00Z";

}  // namespace

bool has_form_of_moment(std::string_view text) {
  return has_form(text, kDayForm) || has_form(text, kMomentForm);
}

bool has_form_of_span(std::string_view text) {
  return text.size() > 1 && (text.back() == 'd' || text.back() == 'h') &&
         text.find_first_not_of("0123456789") == text.size() - 1;
}

std::optional<std::int64_t> parse_moment(std::string_view text) {
  if (!has_form_of_moment(text)) return std::nullopt;
  const bool day_alone = text.size() == kDayForm.size();
  const auto number = [&](std::size_t at, std::size_t size) { return *digits(text.substr(at, size)); };
  const std::chrono::year_month_day day(std::chrono::year(number(0, 4)),
                                        std::chrono::month(static_cast<unsigned>(number(5, 2))),
                                        std::chrono::day(static_cast<unsigned>(number(8, 2))));
  if (!day.ok()) return std::nullopt;
  const std::int64_t start = std::int64_t{std::chrono::sys_days(day).time_since_epoch().count()} * 86400;
  if (day_alone) return start;
  const int hour = number(11, 2), minute = number(14, 2), second = number(17, 2);
  if (hour > 23 || minute > 59 || second > 59) return std::nullopt;
  return start + hour * 3600 + minute * 60 + second;
}

std::optional<std::int64_t> parse_span(std::string_view text) {
  if (text.size() < 2 || text.size() > 7) return std::nullopt;
  const std::int64_t unit = text.back() == 'd' ? 86400 : text.back() == 'h' ? 3600 : 0;
  const std::optional<int> number = digits(text.substr(0, text.size() - 1));
  if (unit == 0 || !number || *number == 0 || *number * unit > std::int64_t{36500} * 86400) return std::nullopt;
  return *number * unit;
}

std::string moment_text(std::int64_t moment) {
  const std::chrono::sys_seconds at{std::chrono::seconds(moment)};
  const auto day = std::chrono::floor<std::chrono::days>(at);
  const std::chrono::year_month_day date(day);
  const std::int64_t seconds = (at - day).count();
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()), seconds / 3600,
                     seconds / 60 % 60, seconds % 60);
}

}  // namespace kvasir::tenants
