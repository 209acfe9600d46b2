// How failures travel inside this folder: as an exception that parse() and render() turn into a Status.
#pragma once

#include <fmt/core.h>

#include <string>
#include <utility>

#include "kvasir/status.h"

namespace kvasir::jinja {

struct Failure {
  StatusCode code;
  std::string message;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure{StatusCode::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

}  // namespace kvasir::jinja
