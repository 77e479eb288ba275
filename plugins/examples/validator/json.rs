//! Checks JSON (RFC 8259) and tells the names of an object's members.

/// The names of the top object's members, escapes resolved, or what is wrong where.
pub fn members(text: &[u8]) -> Result<Vec<String>, String> {
    let mut parser = Parser {
        text,
        at: 0,
        names: Vec::new(),
    };
    std::str::from_utf8(text).map_err(|e| e.to_string())?;
    parser.space();
    if parser.peek() != Some(b'{') {
        return parser.fail("an object is needed");
    }
    parser.value(0)?;
    if parser.at < text.len() {
        return parser.fail("something follows the object");
    }
    Ok(parser.names)
}

/// The deepest nesting, so that a hostile payload cannot exhaust the stack.
const MAX_DEPTH: usize = 200;

struct Parser<'a> {
    text: &'a [u8],
    at: usize,
    names: Vec<String>, // of the top object's members
}

impl Parser<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn fail<T>(&self, what: &str) -> Result<T, String> {
        Err(format!("{} at offset {}", what, self.at))
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        if !self.text[self.at..].starts_with(token.as_bytes()) {
            return self.fail(&format!("{} is needed", token));
        }
        self.at += token.len();
        Ok(())
    }

    fn value(&mut self, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return self.fail("nested too deeply");
        }
        self.space();
        match self.peek() {
            Some(b'{') => self.list(b'}', depth, Parser::member)?,
            Some(b'[') => self.list(b']', depth, Parser::value)?,
            Some(b'"') => drop(self.string()?),
            Some(b't') => self.expect("true")?,
            Some(b'f') => self.expect("false")?,
            Some(b'n') => self.expect("null")?,
            _ => self.number()?,
        }
        self.space();
        Ok(())
    }

    /// Items with commas between, up to the closing bracket.
    fn list(
        &mut self,
        close: u8,
        depth: usize,
        item: fn(&mut Self, usize) -> Result<(), String>,
    ) -> Result<(), String> {
        self.at += 1;
        self.space();
        if self.peek() == Some(close) {
            self.at += 1;
            return Ok(());
        }
        loop {
            item(self, depth + 1)?;
            match self.peek() {
                Some(b',') => self.at += 1,
                Some(c) if c == close => break,
                _ => return self.fail("a comma or a closing bracket is needed"),
            }
        }
        self.at += 1;
        Ok(())
    }

    fn member(&mut self, depth: usize) -> Result<(), String> {
        self.space();
        let name = self.string()?;
        if depth == 1 {
            self.names.push(name);
        }
        self.space();
        self.expect(":")?;
        self.value(depth)
    }

    fn string(&mut self) -> Result<String, String> {
        self.expect("\"")?;
        let mut bytes = Vec::new();
        loop {
            match self.peek() {
                Some(b'"') => break,
                Some(b'\\') => {
                    let c = self.escape()?;
                    bytes.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
                }
                Some(c) if c >= 0x20 => {
                    bytes.push(c);
                    self.at += 1;
                }
                _ => return self.fail("a string is not closed"),
            }
        }
        self.at += 1;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn escape(&mut self) -> Result<char, String> {
        self.at += 2;
        Ok(match self.text.get(self.at - 1) {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\x08',
            Some(b'f') => '\x0c',
            Some(c @ (b'"' | b'\\' | b'/')) => char::from(*c),
            Some(b'u') => return self.unicode(),
            _ => return self.fail("an unknown escape"),
        })
    }

    /// What follows \u, and the other half of a surrogate pair. Half a pair is U+FFFD.
    fn unicode(&mut self) -> Result<char, String> {
        let high = self.hex4()?;
        if (0xd800..0xdc00).contains(&high) && self.text[self.at..].starts_with(b"\\u") {
            let here = self.at;
            self.at += 2;
            let low = self.hex4()?;
            if (0xdc00..0xe000).contains(&low) {
                let c = 0x10000 + ((high - 0xd800) << 10) + (low - 0xdc00);
                return Ok(char::from_u32(c).unwrap_or(char::REPLACEMENT_CHARACTER));
            }
            self.at = here;
        }
        Ok(char::from_u32(high).unwrap_or(char::REPLACEMENT_CHARACTER))
    }

    fn hex4(&mut self) -> Result<u32, String> {
        let mut n = 0;
        for _ in 0..4 {
            match self.peek().and_then(|c| char::from(c).to_digit(16)) {
                Some(digit) => n = n * 16 + digit,
                None => return self.fail("four hexadecimal digits are needed"),
            }
            self.at += 1;
        }
        Ok(n)
    }

    fn number(&mut self) -> Result<(), String> {
        if self.peek() == Some(b'-') {
            self.at += 1;
        }
        match self.peek() {
            Some(b'0') => self.at += 1,
            Some(b'1'..=b'9') => self.digits()?,
            _ => return self.fail("a value is needed"),
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.peek() {
            self.at += 1;
            if let Some(b'+' | b'-') = self.peek() {
                self.at += 1;
            }
            self.digits()?;
        }
        Ok(())
    }

    fn digits(&mut self) -> Result<(), String> {
        if !matches!(self.peek(), Some(b'0'..=b'9')) {
            return self.fail("a digit is needed");
        }
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        Ok(())
    }
}
