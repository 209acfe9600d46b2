#include "kvasir/status.h"

namespace kvasir {

std::string_view status_code_name(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid argument";
    case StatusCode::kNotFound: return "not found";
    case StatusCode::kDataLoss: return "damaged data";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kResourceExhausted: return "resource exhausted";
    case StatusCode::kIo: return "i/o error";
    case StatusCode::kCancelled: return "cancelled";
  }
  return "unknown";
}

}  // namespace kvasir
