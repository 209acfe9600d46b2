// The options of kvasir run, as its parts share them.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "cli/run/grammar_options.h"
#include "kvasir/options.h"

namespace kvasir::cli {

struct RunOptions {
  EngineOptions engine;
  SessionOptions session;
  GenerateOptions generate;
  GrammarOptions grammar;
  std::optional<std::string> prompt;
  std::vector<std::string> files;
  std::string demote;
  std::string chat_template;
  std::string system;
  std::string system_option = "--system";  // the option that gave it, for messages
  std::int64_t context = 0;                // tokens kept; 0: the policy's
  std::string save;
  std::string load;
  int samples = 1;
  int beams = 0;  // 0: no beam search
  double length_penalty = 1;
  bool tokens_given = false;                            // -n was given
  std::set<std::string, std::less<>> sampling_options;  // the sampling options that were given
  bool engine_given = false;                            // an option that a session file determines was given
  bool chat = false;
  bool parts = false;  // the files are read in parts
  bool raw = false;    // -p is not a message, whatever the model
  bool json = false;
  bool json_stream = false;  // with json: a line for each piece of text before the report
};

}  // namespace kvasir::cli
