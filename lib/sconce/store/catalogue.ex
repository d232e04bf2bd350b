defmodule Sconce.Store.Catalogue do
  @moduledoc false
  # The options of `Sconce.Store`.

  @open [
    ram: [type: :bytes, default: 256 * 2 ** 20, doc: "Bytes of blocks in RAM."],
    compressed: [
      type: {:or, [:bytes, {:in, [0]}]},
      default: 64 * 2 ** 20,
      doc: "Bytes of compressed blocks in RAM; 0 for none."
    ],
    disk: [
      type: {:or, [:bytes, nil]},
      default: nil,
      doc:
        "Bytes on disk at most; `nil` is all that there is. When it is reached, files of which little is used are rewritten, " <>
          "with up to 64 MB more for a while."
    ],
    block: [
      type: :bytes,
      default: 2 ** 20,
      min: 4096,
      max: 2 ** 26,
      doc: "Bytes of a block. A smaller tensor is one block of its size."
    ],
    compress: [
      type: :boolean,
      default: true,
      doc: "Whether blocks that get shorter by it are compressed."
    ],
    cold: [
      type: {:in, [nil, :int8]},
      default: nil,
      doc:
        "How `compact/2`, and a put that reaches the limit of `:disk`, store cold blocks of tensors that were put with " <>
          "`lossy: true`; `:int8` is eight bits an element, `nil` as they are."
    ],
    threads: [
      type: :non_neg_integer,
      default: 2,
      max: 64,
      doc: "Threads that prefetch and compress; with 0 nothing happens in the background."
    ],
    background: [
      type: {:or, [:bytes, nil]},
      default: nil,
      doc:
        "Bytes a second that are read ahead, and written again by `compact/2`, at most; `nil` is no limit. " <>
          "Reads and puts that a caller waits for are not limited."
    ],
    prefetch: [
      type: :non_neg_integer,
      default: 32,
      max: 1024,
      doc: "Blocks that are prefetched at most; 0 switches prefetching off."
    ],
    prefetch_bytes: [
      type: :bytes,
      default: 64 * 2 ** 20,
      doc:
        "Bytes that are prefetched and not yet asked for, at most; never more than half of `:ram`."
    ],
    confidence: [
      type: :float,
      default: 0.8,
      min: 0.1,
      max: 1.0,
      doc: "Share of right predictions below which a stream is not prefetched."
    ],
    read_only: [
      type: :boolean,
      default: false,
      doc: "Whether the store is read beside a process that writes."
    ]
  ]

  @commit [
    commit: [
      type: :boolean,
      default: true,
      doc: "Whether to return only when the change would survive a power cut."
    ]
  ]

  @put [
         lossy: [
           type: :boolean,
           default: false,
           doc:
             "Whether cold blocks of the tensors may lose something in a store that was opened with `cold: :int8`."
         ]
       ] ++ @commit

  @get [
    rows: [
      type: {:or, [{:tuple, [:non_neg_integer, :non_neg_integer]}, nil]},
      default: nil,
      doc: "The first row and the number of rows, `{first, count}`; `nil` is all."
    ],
    stream: [
      type: :any,
      default: nil,
      doc: "Whose requests predict what is prefetched; `nil` is the calling process."
    ],
    as: [
      type: {:in, [:binaries, :nx]},
      default: :binaries,
      doc: "Form of the tensor: a map of `data`, `shape` and `type`, or an Nx tensor."
    ]
  ]

  @compact [
    share: [
      type: :float,
      default: 0.5,
      min: 0.0,
      max: 1.0,
      doc: "Packs of which less than this share is used are rewritten."
    ]
  ]

  @doc "The options of a function."
  @spec schema(atom) :: Sconce.Options.schema()
  def schema(:open), do: @open
  def schema(:put), do: @put
  def schema(:commit), do: @commit
  def schema(:get), do: @get
  def schema(:compact), do: @compact
end
