// Captures of streams, and the graphs made from them.
#pragma once
#include "card.h"
#include <thread>

namespace card {

struct Graph {
  std::vector<Work> work;
  // Its allocations, and those of them that it does not free.
  std::vector<uintptr_t> memory, kept;
  // Bytes allocated at the current point of the capture, and their peak.
  size_t bytes = 0, most = 0;
  int executables = 0;
  ~Graph();
};

enum class Mode { Global = 0, ThreadLocal = 1, Relaxed = 2 };

struct Capture {
  Mode mode;
  Stream *origin;
  std::thread::id thread;
  uint64_t id;
  bool invalid = false;
  std::shared_ptr<Graph> graph = std::make_shared<Graph>();
  // Streams that joined the capture and have not been waited for by another of its streams.
  std::set<Stream *> unjoined = {};
};

struct Executable {
  std::shared_ptr<Graph> graph;
  bool frees_on_launch;
};

// A position in a stream or in a capture.
struct Event {
  Stream *stream = nullptr;
  uint64_t position = 0;
  std::weak_ptr<Capture> capture;
  bool captured = false;
  // The time at which it was passed, in ms.
  std::shared_ptr<double> passed;
};

extern Stream &legacy;
extern std::set<Stream *> &streams;

// Fail and invalidate captures, as a card's driver does for calls that wait or may wait.
void not_captured(Stream &stream);
void nothing_captured();
// The same for the synchronisation of a whole card.
void none_of_card_captured(int card);

void record(Event &event, Stream &stream);
void wait_for(Stream &stream, Event &event);
void begin(Stream &stream, Mode mode);
std::shared_ptr<Graph> end(Stream &stream);
void launch(Executable &executable, Stream &stream);
// Reserves the memory of a graph in a stream.
void provide(Executable &executable, Stream &stream);
// Ends a stream. The memory of its graphs stays until it is trimmed.
void end_stream(Stream &stream);
void trim_graphs(int card);
size_t of_graphs(int card);

// Allocates from a pool, from the card for a null pool, or in the order of a stream.
uintptr_t allocate(size_t bytes, Pool *pool);
uintptr_t allocate(size_t bytes, Stream &stream);
void release(uintptr_t address, Stream &stream);

} // namespace card
