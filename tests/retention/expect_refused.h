// What a spec that cannot be made gets: one line, which names what is wrong and what is accepted.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "retention/registry.h"

namespace kvasir::test {

inline void expect_refused(const std::string& spec, const std::vector<std::string>& named) {
  const auto policy = make_policy(spec);
  ASSERT_FALSE(policy.ok()) << spec;
  EXPECT_EQ(policy.status().code(), StatusCode::kInvalidArgument) << spec;
  const std::string& message = policy.status().message();
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  for (const std::string& name : named) EXPECT_NE(message.find(name), std::string::npos) << spec << ": " << message;
}

}  // namespace kvasir::test
