// The usage of tenants, by hour.
// Thread-safety: plain values.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvasir::tenants {

struct UsageFigures {
  std::int64_t requests = 0;   // ended, with any outcome
  std::int64_t failed = 0;     // those that ended with an error
  std::int64_t abandoned = 0;  // those abandoned by the client
  std::int64_t refused = 0;    // refused by a rate limit; not among `requests`
  std::int64_t prompt_tokens = 0;
  std::int64_t cached_tokens = 0;      // prompt tokens from the prefix cache
  std::int64_t recomputed_tokens = 0;  // computed again after preemptions
  std::int64_t generated_tokens = 0;
  std::int64_t preemptions = 0;
  std::int64_t milliseconds = 0;  // from arrival to end, of all requests together
  bool operator==(const UsageFigures&) const = default;

  void add(const UsageFigures& other);
};

// The figures by name: the columns of the database, and the fields of reports.
struct UsageField {
  std::string_view name;
  std::int64_t UsageFigures::*value;
};
constexpr std::array<UsageField, 10> kUsageFields = {{
    {"requests", &UsageFigures::requests},
    {"failed", &UsageFigures::failed},
    {"abandoned", &UsageFigures::abandoned},
    {"refused", &UsageFigures::refused},
    {"prompt_tokens", &UsageFigures::prompt_tokens},
    {"cached_tokens", &UsageFigures::cached_tokens},
    {"recomputed_tokens", &UsageFigures::recomputed_tokens},
    {"generated_tokens", &UsageFigures::generated_tokens},
    {"preemptions", &UsageFigures::preemptions},
    {"milliseconds", &UsageFigures::milliseconds},
}};

inline void UsageFigures::add(const UsageFigures& other) {
  for (const UsageField& field : kUsageFields) this->*field.value += other.*field.value;
}

// Times are in seconds since 1970, UTC.
struct UsageKey {
  std::int64_t hour = 0;  // its start
  std::string tenant;     // "": requests without a key
  auto operator<=>(const UsageKey&) const = default;
};
using UsageBatch = std::map<UsageKey, UsageFigures>;

struct UsageRow {
  std::int64_t start = 0;
  std::int64_t seconds = 0;  // 3600, or 86400 for the sum of a day's hours
  std::string tenant;
  UsageFigures figures;
};

struct UsageQuery {
  std::int64_t since = 0;   // only periods that end after this
  bool one_tenant = false;  // only `tenant`
  std::string tenant;
  std::size_t limit = 100000;  // rows; the newest
};

}  // namespace kvasir::tenants
