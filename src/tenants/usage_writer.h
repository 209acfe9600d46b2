// Writes usage to the database, on a thread of its own: who adds figures never waits for a disk.
//
// Figures are added up in memory and committed twice a second, so that a process that is killed loses less than a
// second of them. While the database cannot be written (a full disk, a lock, damage) they stay in memory, by tenant and
// hour, and every attempt is made anew: the log gets one line when it begins and one when it is over.
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
    std::size_t questions = 64;                   // that may wait for an answer
    std::size_t pending = 20000;                  // rows in memory while the database cannot be written
  };
  using Answer = std::function<void(const Result<std::vector<UsageRow>>&)>;

  explicit UsageWriter(Options options);
  UsageWriter(const UsageWriter&) = delete;
  UsageWriter& operator=(const UsageWriter&) = delete;
  // Tries once more to write what has not been written.
  ~UsageWriter();

  // Adds figures of a tenant to those of the hour.
  void add(const std::string& tenant, const UsageFigures& figures);

  // Reads rows, with all that was added before, and hands them over on the writer's thread. Errors: kResourceExhausted
  // while too many wait.
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

  // Of the writer's thread alone.
  std::unique_ptr<UsageStore> store_;
  std::int64_t rolled_up_ = 0;  // the day of the newest roll_up()
  std::string problem_;         // what the log was told; empty: all is well
  bool lost_ = false;           // the log was told that figures were dropped

  std::thread thread_;  // last: it uses the others
};

}  // namespace kvasir::tenants
