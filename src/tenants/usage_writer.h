// Writes usage to the database on a thread of its own, so that callers never wait for a disk.
//
// Figures are added up in memory and committed twice a second, so a killed process loses less than a second of them.
// While the database cannot be written (a full disk, a lock, damage) they stay in memory, by tenant and hour, and every
// attempt opens it anew. The log gets one line when that begins and one when it is over.
//
// Thread-safety: any thread may call.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "kvasir/status.h"
#include "tenants/usage_store.h"

namespace kvasir::tenants {

class UsageWriter {
 public:
  struct Options {
    std::string path;
    std::chrono::milliseconds period{500};
    std::function<void(const std::string&)> log;  // gets one line; called on the writer's thread
    std::function<std::int64_t()> now;            // seconds since 1970; empty: the system's clock
    std::size_t questions = 64;                   // most questions that may wait for an answer
    std::size_t pending = 20000;                  // most rows in memory while the database cannot be written
  };
  using Answer = std::function<void(const Result<std::vector<UsageRow>>&)>;

  explicit UsageWriter(Options options);
  UsageWriter(const UsageWriter&) = delete;
  UsageWriter& operator=(const UsageWriter&) = delete;
  // Tries once more to write the pending figures.
  ~UsageWriter();

  // Adds a tenant's figures to the current hour.
  void add(const std::string& tenant, const UsageFigures& figures);

  // Reads rows, including all figures added before, and passes them to `answer` on the writer's thread. Errors:
  // kResourceExhausted while too many questions wait.
  Status ask(UsageQuery query, Answer answer);

 private:
  struct Question {
    UsageQuery query;
    Answer answer;
  };

  void run();
  Status write();
  Status ready_store();
  void put_back(UsageBatch batch);
  void tell(const Status& status);
  std::int64_t now() const;

  const Options options_;
  std::mutex mutex_;
  std::condition_variable wake_;
  UsageBatch pending_;
  std::deque<Question> questions_;
  bool stopping_ = false;

  // Used only by the writer's thread.
  std::unique_ptr<UsageStore> store_;
  std::int64_t rolled_up_ = 0;  // the day of the newest roll_up()
  std::string problem_;         // last logged problem; empty: none
  bool lost_ = false;           // the log says that figures were dropped

  std::thread thread_;  // last: it uses the other members
};

}  // namespace kvasir::tenants
