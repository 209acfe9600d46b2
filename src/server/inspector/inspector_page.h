// The Inspector's page: static files with the headers that confine it to its own server.
// Thread-safety: pure functions.
#pragma once

#include "server/http/router.h"

namespace kvasir::server {

// Adds GET / and GET /assets/....
void add_inspector_page(Router& router);

}  // namespace kvasir::server
