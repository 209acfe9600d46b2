// A loaded model as requests use it: its engine on a thread of its own, and the defaults of its requests.
// Thread-safety: the members do not change; StepThread says who may call it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kvasir/options.h"
#include "server/threads/step_thread.h"

namespace kvasir::server {

// What requests of a model get that say nothing of it.
struct ServedDefaults {
  std::string name;          // of the model, as clients name it
  std::string policy;        // empty: the engine's default
  SamplingOptions sampling;  // of requests that give no temperature
  int parallel = 1;          // requests that run at a time
  std::string draft = {};    // GenerateOptions::draft of requests that give none
};

struct Served {
  Served(std::unique_ptr<Engine> engine, ServedDefaults given, StepThread::Options options)
      : defaults(std::move(given)), steps(std::move(engine), std::move(options)) {}

  const ServedDefaults defaults;
  StepThread steps;
};

}  // namespace kvasir::server
