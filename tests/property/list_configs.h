// The tables of lists that random plans run on.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

namespace kvasir::test {

struct ListConfig {
  std::string name;
  int slots = 16;
  int lanes = 1;
  int budget_columns = 40;
  bool original = false;                 // to begin with
  int usual = 0;                         // tokens that most plans keep
  std::vector<std::int64_t> capacities;  // of all runs, if there are several
  std::int64_t sinks = 0;                // that run 0 holds besides
};

inline void PrintTo(const ListConfig& config, std::ostream* out) {
  *out << config.name;
}

inline std::vector<ListConfig> list_configs() {
  return {
      {.name = "Compact16", .slots = 16, .lanes = 1, .budget_columns = 24},
      {.name = "Compact16Usual", .slots = 16, .lanes = 1, .budget_columns = 120, .usual = 700},
      {.name = "Compact32", .slots = 32, .lanes = 3, .budget_columns = 16},
      {.name = "Compact64", .slots = 64, .lanes = 2, .budget_columns = 11},
      {.name = "Compact64Usual", .slots = 64, .lanes = 1, .budget_columns = 14, .usual = 250},
      {.name = "Original16", .slots = 16, .lanes = 2, .budget_columns = 22, .original = true},
      {.name = "Original32", .slots = 32, .lanes = 1, .budget_columns = 14, .original = true, .usual = 100},
      {.name = "Original64", .slots = 64, .lanes = 3, .budget_columns = 11, .original = true},
      {.name = "Cascade16", .slots = 16, .lanes = 1, .budget_columns = 30, .capacities = {20, 20, 20, 20}, .sinks = 4},
      {.name = "Cascade32", .slots = 32, .lanes = 3, .budget_columns = 30, .capacities = {70, 70}, .sinks = 40},
      {.name = "Cascade64", .slots = 64, .lanes = 2, .budget_columns = 25, .capacities = {64, 64, 64, 64}},
      {.name = "CascadeOfOnes",
       .slots = 16,
       .lanes = 1,
       .budget_columns = 50,
       .capacities = std::vector<std::int64_t>(16, 1),
       .sinks = 3},
      {.name = "CascadeUneven",
       .slots = 16,
       .lanes = 2,
       .budget_columns = 40,
       .capacities = {9, 16, 3, 50},
       .sinks = 17},
  };
}

}  // namespace kvasir::test
