// The chat templates in tests/chat/templates.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "support/shared_data.h"

namespace kvasir::test {

// Returns the Jinja source of a template, by its file's name without ".jinja".
inline std::string template_file(const std::string& name) {
  std::ifstream file(source_dir() + "/tests/chat/templates/" + name + ".jinja", std::ios::binary);
  EXPECT_TRUE(file.good()) << name;
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

}  // namespace kvasir::test
