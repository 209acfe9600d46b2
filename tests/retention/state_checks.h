// What holds for the state of every policy, whatever it drops.
#pragma once

#include <string>
#include <vector>

#include "retention/table_driver.h"

namespace kvasir::test {

// The policy, begun with several tables where it has several.
struct BegunPolicy {
  explicit BegunPolicy(const std::string& spec);
  TableLayout layout;
  std::unique_ptr<RetentionPolicy> policy;  // null if there is no such policy
};

std::vector<std::byte> saved_state(const RetentionPolicy& policy);

// A policy restored from its saved state continues as the one that was saved.
void check_restored(const std::string& spec);

// A damaged state is refused, or is that of another moment, or harmless; and it allocates little.
void check_damaged(const std::string& spec);

// How chunks are executed, in passes of whatever size, changes nothing.
void check_splits(const std::string& spec);

// exact_prefix is what the definition says.
void check_exact_prefix(const std::string& spec);

// All of them.
void check_state(const std::string& spec);

}  // namespace kvasir::test
