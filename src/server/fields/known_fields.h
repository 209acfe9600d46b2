// Fields of requests that other servers know, and that this one does not honour.
//
// A field of a request is honoured, refused, or named in the answer's header X-Kvasir-Ignored. A field that would
// change the answer is refused; one that this table and the readers do not know, or that cannot change the answer
// (`metadata`, `user`), is named. Thread-safety: pure functions.
#pragma once

#include "kvasir/status.h"
#include "server/fields/json_fields.h"

namespace kvasir::server {

// Refuses a body with a field that would change the answer and is not honoured, unless it has the value that changes
// nothing. Errors: kUnsupported, about the field.
Status refuse_known(const Fields& body, bool chat);

// Checks fields that change nothing: metadata, store, service_tier, verbosity, prompt_cache_key, user,
// safety_identifier. Errors: kInvalidArgument for a malformed one; kUnsupported for a value that asks for something.
Status check_hints(const Fields& body);

}  // namespace kvasir::server
