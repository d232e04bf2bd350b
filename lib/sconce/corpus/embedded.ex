defmodule Sconce.Corpus.Embedded do
  @moduledoc false
  # Finds the embedding that made the vectors of a corpus of ExPhil. The native side has checked the file.

  # Numbers of a frame in ExPhil's default embedding, which are those of `{:melee, layout: :packed}`.
  @packed 288
  # Features of the previous action in a packed frame, and frames that tell whether they are used.
  @previous 119
  @previous_width 13
  @looked_at 4096

  @doc "Returns the embedding of vectors of this width, or nil if it is not known."
  @spec embedding(Path.t(), pos_integer) :: {:melee, keyword} | nil
  def embedding(path, @packed) do
    case File.open(path, [:read, :binary, :raw], &first_frames/1) do
      {:ok, {:ok, frames, size}} -> {:melee, [layout: :packed] ++ hidden(frames, size)}
      _other -> nil
    end
  end

  def embedding(_path, _width), do: nil

  # The first frames of an open file, and the bytes of a number.
  defp first_frames(file) do
    with {:ok, header} <- :file.read(file, 32),
         <<"EMBD", 1::32-little, frames::64-little, @packed::64-little, rest::binary>> <- header,
         <<kind::32-little, _::32>> = rest,
         size = if(kind == 1, do: 4, else: 2),
         {:ok, data} <- :file.pread(file, 32, min(frames, @looked_at) * @packed * size),
         do: {:ok, data, size}
  end

  # ExPhil writes zeros for the previous action by default.
  defp hidden(frames, size) do
    skipped = @previous * size
    width = @previous_width * size
    rest = @packed * size - skipped - width
    zeros = :binary.copy(<<0>>, width)

    previous =
      for <<_::binary-size(skipped), own::binary-size(width), _::binary-size(rest) <- frames>>,
        do: own

    if Enum.all?(previous, &(&1 == zeros)), do: [previous_action: false], else: []
  end
end
