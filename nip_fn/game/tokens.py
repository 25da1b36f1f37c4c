"""The tokens of a reply as they were sampled, which are what a training needs."""

from collections.abc import Sequence
from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

# Eight bytes a token, which any language reads at once.  Ids of variable length would save two of
# them; half the bits of a log-probability two more, but move a token's importance ratio by up to a
# percent.
_ID, _LOG_PROBABILITY = np.dtype("<u4"), np.dtype("<f4")


class SampledTokens(msgspec.Struct, frozen=True, array_like=True):
    """The tokens that a reply was sampled as, an end token that was drawn included.

    A log-probability is the model's own, in nats: the log-softmax of its logits, before
    temperature, top_p and penalties.  A policy's ratio to it is therefore that of two models at
    temperature 1.  It corrects for the distribution that the reply was drawn from only if the
    temperature was 1 and neither top_p nor a penalty was set; at another temperature T, means
    weighted by it are biased towards the replies that T prefers.

    A provider may give either array alone: OpenAI gives log-probabilities, without the end token.

    id_bytes: the token ids, little-endian uint32; empty if they are not known.
    log_probability_bytes: little-endian float32, one for each token; empty if they are not known.
    """

    id_bytes: bytes = b""
    log_probability_bytes: bytes = b""

    @classmethod
    def of(
        cls,
        ids: Sequence[int] | NDArray[np.integer] = (),
        log_probabilities: Sequence[float] | NDArray[np.floating] = (),
    ) -> Self:
        """The tokens with these ids and log-probabilities, of which either may be left out.

        Args:
            ids: `[T]`, each from 0 to 2³² - 1.
            log_probabilities: `[T]`, in nats; rounded to float32.

        Raises:
            ValueError: There are as many of neither, an id is out of range, or a log-probability is
                no finite number.

        >>> tokens = SampledTokens.of([17, 2], [-0.5, -0.25])
        >>> tokens.ids, tokens.log_probabilities
        (array([17,  2], dtype=uint32), array([-0.5 , -0.25], dtype=float32))
        """
        if len(ids) and len(log_probabilities) and len(ids) != len(log_probabilities):
            raise ValueError(f"{len(ids)} ids, but {len(log_probabilities)} log-probabilities")
        if len(ids) and not 0 <= min(ids) <= max(ids) < 2**32:
            raise ValueError(f"ids from {min(ids)} to {max(ids)}, but they have 32 bits")
        log_probability_T = np.asarray(log_probabilities, _LOG_PROBABILITY)
        if not np.isfinite(log_probability_T).all():
            raise ValueError("a log-probability is no finite number")
        return cls(np.asarray(ids, _ID).tobytes(), log_probability_T.tobytes())

    @property
    def ids(self) -> NDArray[np.uint32]:
        """The token ids, uint32 `[T]`; `[0]` if they are not known."""
        return np.frombuffer(self.id_bytes, _ID)

    @property
    def log_probabilities(self) -> NDArray[np.float32]:
        """The log-probability of each token in nats, float32 `[T]`; `[0]` if not known."""
        return np.frombuffer(self.log_probability_bytes, _LOG_PROBABILITY)
