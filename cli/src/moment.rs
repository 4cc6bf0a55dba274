//! Moments as operators write them: `now-7d`, `now-1h30m`, or milliseconds since the Unix epoch.

use std::str::FromStr;

use seriatim_core::WritePointer;

/// Why a text is no moment.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MomentError {
    /// It is neither a number nor does it start with `now`.
    #[error("{0:?} is no moment: write now, now-7d, now-1h30m, or milliseconds since 1970")]
    NotAMoment(String),
    /// After `now`, and after each unit, comes a sign, a number or the end.
    #[error("{0:?} stands where + or - and a number should")]
    NoSign(String),
    /// A sign is followed by a number, and a number by its unit.
    #[error("{0:?} is no span of time: write numbers with their units, like 1h30m")]
    NoNumber(String),
    /// The unit is not known.
    #[error("{0:?} is no unit of time: d, h, m and s are")]
    UnknownUnit(char),
    /// Past the last write pointer, or more than can be counted.
    #[error("{0:?} is no time that a transaction can begin at; a number counts milliseconds, and is no write pointer")]
    OutOfRange(String),
}

/// A moment, which may depend on what time it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Moment {
    /// In ms since the Unix epoch.
    At(u64),
    /// So many ms after now, or before.
    AroundNow(i128),
}

impl FromStr for Moment {
    type Err = MomentError;

    fn from_str(text: &str) -> Result<Moment, MomentError> {
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            let ms = text.parse().ok().filter(|ms| *ms <= WritePointer::MAX.ms_since_epoch());
            return ms.map(Moment::At).ok_or_else(|| MomentError::OutOfRange(text.to_owned()));
        }
        let mut rest = text.strip_prefix("now").ok_or_else(|| MomentError::NotAMoment(text.to_owned()))?;
        let mut distance = 0;
        while !rest.is_empty() {
            let sign = match rest.as_bytes()[0] {
                b'+' => 1,
                b'-' => -1,
                _ => return Err(MomentError::NoSign(rest.to_owned())),
            };
            let end = rest[1..].find(['+', '-']).map_or(rest.len(), |end| end + 1);
            distance += sign * i128::from(span_ms(&rest[1..end])?);
            rest = &rest[end..];
        }
        Ok(Moment::AroundNow(distance))
    }
}

impl Moment {
    /// The first pointer of this moment, given what time it is in ms since the Unix epoch. A moment before 1970 counts as
    /// its start, and one past the last pointer as that.
    pub fn pointer(self, now_ms: u64) -> WritePointer {
        WritePointer::at_ms(match self {
            Moment::At(ms) => ms,
            Moment::AroundNow(distance) => {
                let last = i128::from(WritePointer::MAX.ms_since_epoch());
                u64::try_from((i128::from(now_ms) + distance).clamp(0, last)).expect("it was clamped")
            }
        })
    }
}

/// Reads a span of time, like `1h30m`, in ms.
fn span_ms(text: &str) -> Result<u64, MomentError> {
    let no_number = || MomentError::NoNumber(text.to_owned());
    let (mut rest, mut sum) = (text, 0u64);
    while !rest.is_empty() || text.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let number: u64 = rest[..digits].parse().map_err(|_| no_number())?;
        let unit = rest[digits..].chars().next().ok_or_else(no_number)?;
        let unit_ms = match unit {
            's' => 1_000,
            'm' => 60_000,
            'h' => 3_600_000,
            'd' => 86_400_000,
            other => return Err(MomentError::UnknownUnit(other)),
        };
        let out_of_range = || MomentError::OutOfRange(text.to_owned());
        sum = number.checked_mul(unit_ms).and_then(|ms| sum.checked_add(ms)).ok_or_else(out_of_range)?;
        rest = &rest[digits + unit.len_utf8()..];
    }
    Ok(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_790_000_000_000;
    const S: u64 = 1_000;
    const M: u64 = 60 * S;
    const H: u64 = 60 * M;
    const D: u64 = 24 * H;

    #[test]
    fn moments_are_numbers_or_lie_around_now() {
        let moments = [
            ("1234567890", 1_234_567_890),
            ("0", 0),
            ("now", NOW),
            ("now-7s", NOW - 7 * S),
            ("now-7m", NOW - 7 * M),
            ("now-7h", NOW - 7 * H),
            ("now-7d", NOW - 7 * D),
            ("now+7s", NOW + 7 * S),
            ("now+7m", NOW + 7 * M),
            ("now+7h", NOW + 7 * H),
            ("now+7d", NOW + 7 * D),
            ("now-7d+3h-13m+11s", NOW - 7 * D + 3 * H - 13 * M + 11 * S),
            ("now-1h3m", NOW - 3_780 * S),
            ("now-1h3m+1s", NOW - 3_779 * S),
        ];
        for (text, expected) in moments {
            let moment: Moment = text.parse().unwrap();
            assert_eq!(moment.pointer(NOW), WritePointer::at_ms(expected), "{text}");
        }
        assert_eq!("now-30000d".parse::<Moment>().unwrap().pointer(NOW), WritePointer(0), "before 1970");
        assert_eq!(span_ms("1h3m"), Ok(3_780 * S));
    }

    #[test]
    fn what_is_no_moment_says_why() {
        use MomentError::*;
        let text = str::to_owned;
        let refused = [
            ("", NotAMoment(text(""))),
            ("yesterday", NotAMoment(text("yesterday"))),
            ("-5", NotAMoment(text("-5"))),
            ("1h3m", NotAMoment(text("1h3m"))),
            ("NOW", NotAMoment(text("NOW"))),
            ("now 6h", NoSign(text(" 6h"))),
            ("now/1d", NoSign(text("/1d"))),
            ("now6h", NoSign(text("6h"))),
            ("now-", NoNumber(text(""))),
            ("now--1d", NoNumber(text(""))),
            ("now-d", NoNumber(text("d"))),
            ("now-6", NoNumber(text("6"))),
            ("now-1w", UnknownUnit('w')),
            ("now-1dx3h", NoNumber(text("1dx3h"))),
            ("now-1ü", UnknownUnit('ü')),
            ("now-99999999999999999999d", NoNumber(text("99999999999999999999d"))),
            ("now-999999999999d", OutOfRange(text("999999999999d"))),
            ("99999999999999999999", OutOfRange(text("99999999999999999999"))),
            // A write pointer where a time is meant would forget everything.
            ("1790000000000000001", OutOfRange(text("1790000000000000001"))),
        ];
        for (text, expected) in refused {
            assert_eq!(text.parse::<Moment>(), Err(expected), "{text:?}");
        }
    }
}
