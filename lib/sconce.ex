defmodule Sconce do
  @moduledoc """
  Native policies for games: models that read a frame, remember, and choose a controller input 60
  times a second, and that learn from replays and from play.

  The BEAM holds handles and small results; tensors stay in Rust. One native call computes one whole step.

  | noun | what it is |
  |---|---|
  | `Sconce.Corpus` | games on disk, made from replays once, read by training many times |
  | `Sconce.Trainer` | a training run: start, watch, stop, resume |
  | `Sconce.Policy` | the weights of a Spec on a device |
  | `Sconce.Session` | the memory of a running game over a Policy |
  | `Sconce.Serving` | one Policy shared by many callers, with deadlines |
  | `Sconce.Frame`, `Sconce.Action` | one game frame in, one controller input out |
  | `Sconce.Game` | a game of your own, declared as data |
  | `Sconce.Preset`, `Sconce.Config` | named settings of a run; where settings come from |
  | `Sconce.GPU` | GPUs and their memory |
  | `Sconce.Error` | the reason of a failure, as fields |

  `mix sconce.doctor` checks whether this machine has what Sconce needs.
  """

  @version Mix.Project.config()[:version]

  @doc """
  The version of Sconce.

      iex> Sconce.version()
      #{inspect(@version)}
  """
  @spec version() :: String.t()
  def version, do: @version

  @doc """
  Properties of the native library and of this machine.

  | key | meaning |
  |---|---|
  | `version`, `candle`, `rustler`, `rustc` | versions, as strings |
  | `target`, `profile` | target triple and cargo profile of the build, as strings |
  | `cuda`, `flash_attn` | whether the build supports NVIDIA cards, and flash attention |
  | `threads` | number of threads that the system gives this process |
  | `cpu` | CPU features found at run time; `amx_bf16` is true if this process may use the matrix unit |

      iex> {:ok, info} = Sconce.native_info()
      iex> info.version == Sconce.version()
      true
      iex> info.cpu |> Map.keys() |> Enum.sort()
      [:amx_bf16, :avx2, :avx512_bf16, :avx512_vnni, :avx512f, :fma, :neon]
  """
  @spec native_info() :: {:ok, map} | {:error, Sconce.Error.t()}
  def native_info, do: Sconce.Native.native_info()
end
