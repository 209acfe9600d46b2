// A grid of policies, budgets, codecs and tasks, from a file.
// Thread-safety: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "harness/subject.h"
#include "harness/task_data.h"
#include "harness/tested_model.h"
#include "kvasir/status.h"

namespace kvasir {

// A column of the grid: a benchmark task, or the perplexity of a text.
struct MatrixTask {
  std::string task;  // a built-in name or a definition's file; empty: perplexity
  TaskDataOptions data;
  std::vector<std::string> given;  // fields of TaskDataOptions that the file says, for check_option()
  std::string filler;              // file; empty: the bundled tale
  std::string text;                // perplexity: a file, or a folder of .txt files
  std::int64_t window = 2048;
  std::int64_t windows = 4;   // of each text
  std::int64_t prefill = -1;  // tokens of a window that are a prompt, not scored; -1: half of it
};

struct Matrix {
  std::vector<CacheSetting> settings;  // each policy under each budget, on each codec, in the file's order
  std::vector<MatrixTask> tasks;
  Reading reading = Reading::kTogether;
  bool chat = false;
  bool share_prompts = false;  // of tasks: what prompts begin with alike is read once
};

// Reads the JSON object of a grid's file:
//   {"policies": ["full", "streaming:cap={budget}"], "budgets": [256, 512], "codecs": ["f16", "q8"],
//    "tasks": [{"task": "needle", "tokens": 1024, "count": 64}, {"perplexity": "book.txt", "windows": 4}],
//    "reading": "together", "chat": false, "share_prompts": false}
// A policy without {budget} is one setting. File names are taken from `folder` on, unless absolute. Errors:
// kInvalidArgument that names the field.
Result<Matrix> parse_matrix(std::string_view text, const std::string& folder);

}  // namespace kvasir
