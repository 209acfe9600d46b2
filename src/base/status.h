// Shorthands for functions that return Status or Result.
#pragma once

#include <fmt/core.h>

#include <utility>

#include "kvasir/status.h"

namespace kvasir {

template <class... Args>
Status make_status(StatusCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
Status invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kInvalidArgument, format, std::forward<Args>(args)...);
}
template <class... Args>
Status data_loss(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kDataLoss, format, std::forward<Args>(args)...);
}
template <class... Args>
Status unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kUnsupported, format, std::forward<Args>(args)...);
}
template <class... Args>
Status exhausted(fmt::format_string<Args...> format, Args&&... args) {
  return make_status(StatusCode::kResourceExhausted, format, std::forward<Args>(args)...);
}

}  // namespace kvasir

// Returns the Status of `expr` from the enclosing function if it is not ok.
#define KVASIR_RETURN_IF_ERROR(expr)                 \
  do {                                               \
    ::kvasir::Status kvasir_status_ = (expr);        \
    if (!kvasir_status_.ok()) return kvasir_status_; \
  } while (0)

#define KVASIR_CONCAT_INNER(a, b) a##b
#define KVASIR_CONCAT(a, b) KVASIR_CONCAT_INNER(a, b)

// `KVASIR_ASSIGN_OR_RETURN(auto x, f());` assigns the value of a Result or returns its Status.
#define KVASIR_ASSIGN_OR_RETURN(lhs, expr) \
  KVASIR_ASSIGN_OR_RETURN_IMPL(KVASIR_CONCAT(kvasir_result_, __LINE__), lhs, expr)
#define KVASIR_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                 \
  if (!tmp.ok()) return tmp.status();                \
  lhs = std::move(*tmp)
