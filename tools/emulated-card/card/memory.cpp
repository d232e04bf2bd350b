#include "../emulate.h"
#include "pools.h"
#include <csignal>
#include <cstdarg>
#include <deque>
#include <unistd.h>

namespace card {

void die(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "emulated card: ");
  vfprintf(stderr, format, arguments);
  fprintf(stderr, "\n");
  va_end(arguments);
  abort();
}

namespace memory {
namespace {

using emulate::PAGE;
// Reserved address space, not memory: more than a process uses.
constexpr size_t ADDRESSES = size_t(1) << 44;
// Bytes of this value are NaN in every float type, and -1 or the maximum in integer types.
constexpr int UNWRITTEN = 0xff;

uintptr_t first, next;
auto &allocations = lasting<std::map<uintptr_t, Allocation>>();
// Unused addresses by number of pages. The longest unused address is reused first.
auto &unused = lasting<std::map<size_t, std::deque<uintptr_t>>>();
auto &pins = lasting<std::map<uintptr_t, size_t>>();
// Bytes in use without those of pools.
size_t in_use = 0;

void reserve() {
  void *found = mmap(nullptr, ADDRESSES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (found == MAP_FAILED) die("the reservation of addresses failed");
  first = next = reinterpret_cast<uintptr_t>(found);
}

uintptr_t pages_of(size_t count) {
  auto &same = unused[count];
  if (!same.empty()) {
    const uintptr_t pages = same.front();
    same.pop_front();
    return pages;
  }
  if (first == 0) reserve();
  const uintptr_t pages = next;
  next += (count + 1) * PAGE;
  if (next > first + ADDRESSES) die("no addresses are left");
  return pages;
}

// Whether allocations are guarded by page protection. The system's limit is some ten thousand.
bool guarded = true;

void protect(const Allocation &a, int how) {
  if (!guarded || mprotect(reinterpret_cast<void *>(a.pages), a.page_count * PAGE, how) == 0) return;
  guarded = false;
  fprintf(stderr, "emulated card: too many allocations to guard each of them\n");
  if (errno != ENOMEM || mprotect(reinterpret_cast<void *>(first), ADDRESSES, PROT_READ | PROT_WRITE) != 0)
    die("mprotect of %zu bytes: %s", a.page_count * PAGE, strerror(errno));
}

// Checks that the bytes around an allocation in its pages are unchanged.
void check_margins(const Allocation &a) {
  auto untouched = [](uintptr_t from, uintptr_t to) {
    for (uintptr_t p = from; p < to; p++)
      if (*reinterpret_cast<unsigned char *>(p) != UNWRITTEN) return false;
    return true;
  };
  if (!untouched(a.pages, a.address)) die("something wrote before an allocation of %zu bytes", a.bytes);
  if (!untouched(a.address + a.bytes, a.pages + a.page_count * PAGE))
    die("something wrote past the end of an allocation of %zu bytes", a.bytes);
}

Allocation *near(uintptr_t address) {
  auto after = allocations.upper_bound(address);
  return after == allocations.begin() ? nullptr : &std::prev(after)->second;
}

// The message of a signal handler, whose stack is small.
char sentence[512];

[[gnu::format(printf, 1, 2)]] void tell(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  const size_t length = strlen(sentence);
  vsnprintf(sentence + length, sizeof sentence - length, format, arguments);
  va_end(arguments);
}

void tell_who() {
  tell("emulated card: %s", running());
  if (emulate::block.kernel[0] == 0) return;
  tell(", block %u,%u,%u, thread %u,%u,%u,", blockIdx.x, blockIdx.y, blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
}

void tell_where(uintptr_t address) {
  const Allocation *a = near(address);
  if (address < first || address >= first + ADDRESSES) tell(" touches %#lx, which is no memory of the card", address);
  else if (a == nullptr || address >= a->pages + (a->page_count + 1) * PAGE)
    tell(" touches %#lx, where nothing ever was", address);
  else
    tell(" touches byte %ld of an allocation of %zu bytes%s", long(address - a->address), a->bytes,
         a->there ? "" : " that is free");
  tell("\n");
}

struct sigaction before, before_trap;

void told(int signal, siginfo_t *info, void *) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(info->si_addr);
  const bool ours = first <= address && address < first + ADDRESSES;
  if (!ours && emulate::block.kernel[0] == 0) {
    // The fault is not in a kernel, so the previous handler takes it.
    sigaction(signal, &before, nullptr);
    return;
  }
  tell_who();
  tell_where(address);
  if (write(STDERR_FILENO, sentence, strlen(sentence)) < 0) _exit(1);
  abort();
}

// Kernels are compiled to trap on misaligned accesses.
void trapped(int signal, siginfo_t *, void *) {
  if (emulate::block.kernel[0] == 0) {
    sigaction(signal, &before_trap, nullptr);
    return;
  }
  tell_who();
  tell(" touches a number that is not aligned\n");
  if (write(STDERR_FILENO, sentence, strlen(sentence)) < 0) _exit(1);
  abort();
}

} // namespace

size_t total() {
  const char *megabytes = getenv("SCONCE_EMULATED_CARD_MB");
  return size_t(megabytes ? atoll(megabytes) : 4096) << 20;
}

size_t used() { return in_use + pools::reserved() + pools::kept_for_graphs(); }

size_t rounded(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

uintptr_t address_of(size_t bytes) {
  check(bytes > 0, INVALID_VALUE);
  check(rounded(bytes) <= total(), OUT_OF_MEMORY);
  const size_t count = (rounded(bytes) + PAGE - 1) / PAGE;
  const uintptr_t pages = pages_of(count), address = pages + count * PAGE - rounded(bytes);
  allocations[pages] = {pages, count, bytes, address};
  allocations[pages].card = current_card();
  return address;
}

void give(uintptr_t address) {
  Allocation &a = at(address);
  check(!a.there, OUT_OF_MEMORY);
  if (!a.of_graph) {
    pools::take(a.pool, rounded(a.bytes));
    if (a.pool == nullptr) in_use += rounded(a.bytes);
    a.counted = true;
  }
  a.there = true;
  protect(a, PROT_READ | PROT_WRITE);
  memset(reinterpret_cast<void *>(a.pages), UNWRITTEN, a.page_count * PAGE);
}

void take(uintptr_t address) {
  Allocation &a = at(address);
  if (!a.there) return;
  check_margins(a);
  if (a.counted) {
    pools::put(a.pool, rounded(a.bytes));
    if (a.pool == nullptr) in_use -= rounded(a.bytes);
    a.counted = false;
  }
  a.there = false;
  madvise(reinterpret_cast<void *>(a.pages), a.page_count * PAGE, MADV_DONTNEED);
  protect(a, PROT_NONE);
}

void forget(uintptr_t address) {
  take(address);
  Allocation &a = at(address);
  a.freed = true;
  unused[a.page_count].push_back(a.pages);
}

Allocation &at(uintptr_t address) {
  Allocation *a = near(address);
  check(a != nullptr && a->address == address, INVALID_VALUE);
  return *a;
}

Allocation *around(uintptr_t address, size_t bytes) {
  Allocation *a = near(address);
  return a && !a->freed && a->address <= address && address + bytes <= a->address + a->bytes ? a : nullptr;
}

void *pin(size_t bytes) {
  check(bytes > 0, INVALID_VALUE);
  void *pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(pointer != MAP_FAILED, OUT_OF_MEMORY);
  memset(pointer, UNWRITTEN, bytes);
  pins[reinterpret_cast<uintptr_t>(pointer)] = bytes;
  return pointer;
}

void unpin(void *pointer) {
  auto found = pins.find(reinterpret_cast<uintptr_t>(pointer));
  check(found != pins.end(), INVALID_VALUE);
  munmap(pointer, found->second);
  pins.erase(found);
}

bool pinned(const void *pointer, size_t bytes) {
  const uintptr_t address = reinterpret_cast<uintptr_t>(pointer);
  auto after = pins.upper_bound(address);
  if (after == pins.begin()) return false;
  const auto &[start, size] = *std::prev(after);
  return address + bytes <= start + size;
}

void watch() {
  struct sigaction action = {};
  action.sa_sigaction = told;
  action.sa_flags = SA_SIGINFO | SA_ONSTACK;
  sigaction(SIGSEGV, &action, &before);
  action.sa_sigaction = trapped;
  sigaction(SIGILL, &action, &before_trap);
}

} // namespace memory
} // namespace card
